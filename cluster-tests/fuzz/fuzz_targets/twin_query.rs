#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quorumq_fuzz::twin_query(bytes));
