//! The `quorumq` binary: everything is in the library's `cli`.

use std::process::ExitCode;

/// Many small buffers of many connections on many threads: what jemalloc is good at. RocksDB gets its memory there,
/// too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    quorumq::cli::main()
}
