#![no_main]

libfuzzer_sys::fuzz_target!(|stream: &[u8]| quorumq_fuzz::websocket_frames(stream));
