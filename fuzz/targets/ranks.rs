#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fermata_process::fuzzing::ranks(data));
