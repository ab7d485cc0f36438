//! The `quorumq` binary: everything is in the library's `cli`.

use std::process::ExitCode;

/// Many small buffers of many connections on many threads: what jemalloc is good at. It is not the process's `malloc`,
/// which RocksDB uses: a node under libfaketime, with which tests change its clock, would hang at its start.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    quorumq::cli::main()
}
