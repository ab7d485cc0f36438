//! The end of a process whose disk can't be trusted any more.

use std::fmt::Display;
use std::io::Write;

/// Exit status after [`fatal`], `EX_IOERR` of sysexits.h.
pub const EXIT_IO: i32 = 74;

/// Says what failed and ends the process at once, without flushing or unwinding.
///
/// Called when a write or sync failed or stored data can't be read back. A failed fsync may have dropped the
/// pages it was to write, so trying again would report success for data that is gone; and a replica that
/// guesses at its own state would answer wrongly. Peers carry on without this one.
pub fn fatal(what: &str, error: &dyn Display) -> ! {
    tracing::error!(target: "quorumq::storage", what, %error, "storage failed; this node stops");
    let mut stderr = std::io::stderr();
    // Nothing is left to do when stderr is gone too.
    let _ = writeln!(
        stderr,
        "quorumq: storage failed while {what}: {error}\nquorumq: stopping; nothing acknowledged is lost while a majority of nodes lives"
    );
    let _ = stderr.flush();
    end_process(EXIT_IO)
}

/// Ends the process at once, without flushing or unwinding.
pub(super) fn end_process(status: i32) -> ! {
    // Not `std::process::exit`: it takes RocksDB's static data from under the threads that still use it, which ends in
    // SIGABRT instead of the status.
    #[expect(
        unsafe_code,
        reason = "no safe function ends a process without its exit handlers"
    )]
    // SAFETY: `_exit` has no precondition and does not return.
    unsafe {
        libc::_exit(status)
    }
}
