#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fermata_guest::fuzzing::guest(data));
