//! A thread of a node that stands still while all others go on, as one does that loops or waits for a lock for ever:
//! ptrace(2) stops it.
//!
//! Invariant: one thread of the test does everything to the held thread, because the kernel wants it so; when that one
//! ends, the held thread goes on.

use rustix::process::{Pid, WaitOptions, waitpid};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `__WALL`: children of every kind, threads of others among them.
const ANY_THREAD: WaitOptions = WaitOptions::from_bits_retain(0x4000_0000);

/// How long a thread may take to be found at work.
const CAUGHT_WITHIN: Duration = Duration::from_secs(30);

/// How often it is looked whether the held thread has ended with its process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where a thread is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Wherever it is: mostly it waits in the kernel.
    Anywhere,
    /// In its own code, whichever of that name is. What it holds, it keeps.
    AtWork,
}

/// A thread that is held as long as this value lives, or its process.
pub struct HeldThread {
    release: Option<Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl HeldThread {
    /// Holds a thread of that name.
    ///
    /// # Errors
    ///
    /// The system does not let this process trace others.
    pub fn hold(process: u32, name: &str, place: Where) -> io::Result<Self> {
        let name = name.to_owned();
        let (release, released) = channel();
        let (tell, told) = channel();
        let tracer = std::thread::spawn(move || {
            let caught = catch(process, &name, place);
            let thread = caught.as_ref().ok().copied();
            // Whoever asked waits for it.
            let _ = tell.send(caught);
            if let Some(thread) = thread {
                keep(thread, &released);
            }
        });
        let caught = told.recv().expect("the tracer does not panic");
        caught.map(|_| Self {
            release: Some(release),
            tracer: Some(tracer),
        })
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        self.release.take();
        if let Some(tracer) = self.tracer.take() {
            // A panic of the tracer is not worth another one here.
            let _ = tracer.join();
        }
    }
}

/// Stops a thread, one after the other until one is where it is to be held.
fn catch(process: u32, name: &str, place: Where) -> io::Result<Pid> {
    let deadline = Instant::now() + CAUGHT_WITHIN;
    while Instant::now() < deadline {
        for thread in threads(process, name, place)? {
            ptrace(libc::PTRACE_SEIZE, thread)?;
            ptrace(libc::PTRACE_INTERRUPT, thread)?;
            waitpid(Some(thread), ANY_THREAD)?;
            if place == Where::Anywhere || is_in_own_code(process, thread)? {
                return Ok(thread);
            }
            ptrace(libc::PTRACE_DETACH, thread)?;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    Err(io::Error::other("no such thread is at work"))
}

/// Threads of that name; those that run now, where one at work is asked for.
fn threads(process: u32, name: &str, place: Where) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        // A number, the name in parentheses, and a letter for what it does. A thread may have ended.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let runs = stat.contains(&format!(" ({name}) R "));
        if runs || place == Where::Anywhere && stat.contains(&format!(" ({name}) ")) {
            let number = thread
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            found.extend(number.and_then(Pid::from_raw));
        }
    }
    Ok(found)
}

fn is_in_own_code(process: u32, thread: Pid) -> io::Result<bool> {
    let number = thread.as_raw_nonzero();
    let call = std::fs::read_to_string(format!("/proc/{process}/task/{number}/syscall"))?;
    // Otherwise it begins with the number of the system call.
    Ok(call.starts_with("-1"))
}

/// Holds the thread until its process ends or nobody wants it held any more.
fn keep(thread: Pid, released: &Receiver<()>) {
    while released.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        // A thread that is traced is gone when its tracer has seen its end, and so is its process.
        match waitpid(Some(thread), ANY_THREAD | WaitOptions::NOHANG) {
            Ok(Some((_, status))) if status.exited() || status.signaled() => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
    // It may have ended meanwhile; otherwise it goes on.
    let _ = ptrace(libc::PTRACE_DETACH, thread);
}

fn ptrace(request: libc::c_uint, thread: Pid) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    #[expect(
        unsafe_code,
        reason = "no safe function stops one thread of another process"
    )]
    // SAFETY: these requests take no address and no data, and touch no memory of this process.
    let done = unsafe { libc::ptrace(request, thread.as_raw_nonzero().get(), none, none) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
