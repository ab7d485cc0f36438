#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quorumq_fuzz::cluster_calls::conversation(input));
