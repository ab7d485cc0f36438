//! The `quorumq` binary: everything is in the library's `cli`.

use std::process::ExitCode;

/// Many small buffers of many connections on many threads: what jemalloc is good at. RocksDB's memory is not from there:
/// where jemalloc is the process's `malloc`, too, libfaketime, which tests change a node's clock with, waits for itself.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    quorumq::cli::main()
}
