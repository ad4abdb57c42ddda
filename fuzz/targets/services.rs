#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fermata_experiment::fuzzing::services(data));
