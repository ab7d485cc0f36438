//! One node: its directory, its process, its ports.

use super::diagnosis::Process;
use super::plan::{Plan, binary};
use super::stall::{Disk, Stall};
use crate::http;
use crate::wait;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a node may take to end: it writes a snapshot of what is in memory first.
const EXIT_WITHIN: Duration = Duration::from_secs(60);

/// Where a node listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub cluster: SocketAddr,
    pub mqtt: SocketAddr,
    pub http: SocketAddr,
}

/// How a node comes to its cluster.
#[derive(Debug, Clone, Copy)]
pub enum Entry<'a> {
    /// It makes the cluster with these nodes, or waits among them to be added.
    Member(&'a [(usize, SocketAddr)]),
    /// It asks one of these to be added.
    Joins(&'a [SocketAddr]),
}

impl Entry<'_> {
    fn toml(&self) -> String {
        let mut list = String::new();
        let written = match self {
            Entry::Member(members) => members.iter().try_for_each(|(id, address)| {
                writeln!(list, "  {{ id = {id}, address = \"{address}\" }},")
            }),
            Entry::Joins(nodes) => nodes
                .iter()
                .try_for_each(|address| writeln!(list, "  \"{address}\",")),
        };
        written.expect("a String takes everything");
        match self {
            Entry::Member(_) => format!("members = [\n{list}]"),
            Entry::Joins(_) => format!("join = [\n{list}]"),
        }
    }
}

/// The file that tells how its disk stalls.
pub(super) fn stall_file(directory: &Path, id: usize) -> PathBuf {
    directory.join(format!("node{id}.stall"))
}

/// A node; its process ends with this value.
pub struct Node {
    pub id: usize,
    pub addresses: Addresses,
    pub data: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
    pub environment: Vec<(String, String)>,
    child: Option<Child>,
    paused: bool,
    stall: Stall,
    /// The same for whoever diagnoses a failure.
    process: Arc<Process>,
}

impl Node {
    pub(super) fn prepare(
        directory: &Path,
        id: usize,
        addresses: Addresses,
        entry: Entry<'_>,
        plan: &Plan,
        environment: Vec<(String, String)>,
    ) -> Self {
        let log = directory.join(format!("node{id}.log"));
        let node = Self {
            id,
            addresses,
            data: directory.join(format!("node{id}")),
            config: directory.join(format!("node{id}.toml")),
            log: log.clone(),
            environment,
            child: None,
            paused: false,
            stall: Stall(stall_file(directory, id)),
            process: Arc::new(Process::new(format!("node {id}"), log)),
        };
        fs::create_dir_all(&node.data).expect("the data directory can be made");
        fs::write(&node.config, node.toml(entry, plan)).expect("the configuration can be written");
        node
    }

    fn toml(&self, entry: Entry<'_>, plan: &Plan) -> String {
        let mqtt = self.addresses.mqtt.to_string();
        let listen = match plan.extra.contains("[[listeners]]") {
            true => String::new(),
            false => format!("listen = \"{mqtt}\""),
        };
        format!(
            "[node]\nid = {}\ndata_dir = {:?}\n\n[cluster]\nname = \"test\"\nlisten = \"{}\"\n{}\n\n\
             [mqtt]\n{}\n{}\n\n[http]\nlisten = \"{}\"\n\n[log]\nlevel = \"info\"\nformat = \"text\"\n\n{}\n",
            self.id,
            self.data,
            self.addresses.cluster,
            entry.toml(),
            listen,
            plan.mqtt,
            self.addresses.http,
            plan.extra
                .replace("{mqtt}", &mqtt)
                .replace("{mqtt_port}", &self.addresses.mqtt.port().to_string())
        )
    }

    /// What a diagnosis knows of it.
    pub(super) fn process(&self) -> Arc<Process> {
        self.process.clone()
    }

    /// Where its HTTP port is.
    pub fn http(&self) -> SocketAddr {
        self.addresses.http
    }

    pub fn mqtt(&self) -> SocketAddr {
        self.addresses.mqtt
    }

    /// Starts the process; its output goes to the log file.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "node {} runs already", self.id);
        let child = self.command().spawn().expect("the binary can be started");
        self.process.pid.store(child.id(), Ordering::Relaxed);
        self.child = Some(child);
        self.paused = false;
    }

    /// The command that [`Self::start`] runs.
    pub fn command(&self) -> Command {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the log file can be opened");
        let mut command = Command::new(binary());
        command
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be cloned"))
            .stderr(log);
        command
    }

    pub fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Started, neither killed nor paused by the test.
    pub fn answers(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            // Nothing refuses SIGKILL. The watchdog ends a test whose node hangs in the kernel.
            let _ = child.wait();
            self.process.pid.store(0, Ordering::Relaxed);
        }
        self.paused = false;
    }

    /// SIGSTOP, and waits until every thread stands still: the others run on until one has been given the signal.
    #[track_caller]
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.paused = true;
        wait::until("the node stands still", Duration::from_secs(10), || {
            self.stands_still().then_some(())
        });
    }

    fn stands_still(&self) -> bool {
        let Some(pid) = self.pid() else { return true };
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return true;
        };
        threads.flatten().all(|thread| {
            // The state follows the name, which is in parentheses.
            fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| {
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|rest| rest.starts_with('T'))
            })
        })
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.paused = false;
    }

    /// SIGHUP: it is to read its files again.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// What its disk is like from now on. Takes a plan with `stalls`.
    pub fn set_disk(&self, disk: Disk) {
        self.stall.set(disk);
    }

    /// SIGTERM, and waits for the end.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.ask_to_stop();
        self.wait_exit(EXIT_WITHIN)
    }

    /// SIGTERM.
    #[track_caller]
    pub fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until the process ends by itself.
    #[track_caller]
    pub fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let what = format!("node {} to end", self.id);
        let child = self.child.as_mut().expect("the node was started");
        let status = wait::until(&what, within, || child.try_wait().transpose());
        self.child = None;
        self.process.pid.store(0, Ordering::Relaxed);
        status.expect("a child can be waited for")
    }

    /// Removes everything the node has stored; it must not run.
    pub fn wipe(&mut self) {
        assert!(self.child.is_none(), "node {} runs", self.id);
        fs::remove_dir_all(&self.data).expect("the data directory can be removed");
        fs::create_dir_all(&self.data).expect("the data directory can be made");
    }

    pub fn get(&self, path: &str) -> Option<http::Answer> {
        http::get(self.addresses.http, path)
    }

    /// POSTs an empty JSON object.
    pub fn post(&self, path: &str, within: Duration) -> Option<http::Answer> {
        http::post(self.addresses.http, path, within)
    }

    /// Whether the cluster has a session of that client (a plain word). A node that can't tell has not said no.
    pub fn has_session(&self, client_id: &str) -> bool {
        let answer = self.get(&format!("/v1/session?client_id={client_id}"));
        answer.is_none_or(|answer| answer.status != 404)
    }

    pub fn is_ready(&self) -> bool {
        self.get("/readyz")
            .is_some_and(|answer| answer.status == 200)
    }

    /// Waits until `/readyz` says 200; panics when the process ends before.
    #[track_caller]
    pub fn wait_ready(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        while !self.is_ready() {
            if !self.is_running() {
                eprint!("{}", self.process.log_tail());
                panic!("node {} has ended", self.id);
            }
            if Instant::now() > deadline {
                let answer = self.get("/readyz?verbose");
                panic!(
                    "node {} is not ready within {within:?}: {answer:?}",
                    self.id
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until `/readyz` says that it is not.
    #[track_caller]
    pub fn wait_not_ready(&mut self, within: Duration) {
        let what = format!("node {} to stop being ready", self.id);
        wait::until_ok(&what, within, || match self.get("/readyz") {
            Some(answer) if answer.status != 200 => Ok(()),
            answer => Err(format!("/readyz: {answer:?}")),
        });
    }

    /// `/v1/cluster/status`.
    pub fn status(&self) -> Option<serde_json::Value> {
        let answer = self.get("/v1/cluster/status")?;
        serde_json::from_str(&answer.body).ok()
    }

    /// Term, and id of the leader, as this node sees them.
    pub fn leader_seen(&self) -> Option<(u64, usize)> {
        let status = self.status()?;
        let term = find(&status, "term")?.as_u64()?;
        let leader = find(&status, "leader")?;
        let leader = leader
            .as_u64()
            .or_else(|| find(leader, "id").and_then(serde_json::Value::as_u64))?;
        Some((term, usize::try_from(leader).ok()?))
    }

    /// The sum of a metric over its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.get("/metrics")?;
        let values: Vec<f64> = answer
            .body
            .lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with([' ', '{']))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    pub fn log_text(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

/// The value of a key, wherever in the document it is.
fn find<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(map) => map
            .get(key)
            .filter(|found| !found.is_null())
            .or_else(|| map.values().find_map(|inner| find(inner, key))),
        serde_json::Value::Array(list) => list.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}
