#![no_main]

libfuzzer_sys::fuzz_target!(|stream: &[u8]| quorumq_fuzz::from_server(stream));
