//! A container without an engine: its command runs here, with its environment, and its mounts are directories of a
//! temporary one. `quorumq serve` is replaced by `quorumq check`.

use cluster_tests::cluster::binary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// What the Dockerfile says of the image.
#[derive(Debug, Default)]
pub struct Image {
    pub environment: BTreeMap<String, String>,
    /// The user, by number.
    pub user: String,
    pub ports: Vec<u16>,
}

impl Image {
    pub fn read(dockerfile: &str) -> Image {
        let mut image = Image::default();
        for line in dockerfile.replace("\\\n", " ").lines() {
            let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
            match instruction {
                "ENV" => {
                    let pairs = rest
                        .split_whitespace()
                        .filter_map(|pair| pair.split_once('='));
                    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
                    image.environment.extend(pairs);
                }
                "USER" => rest.trim().clone_into(&mut image.user),
                "EXPOSE" => {
                    image.ports = rest.split_whitespace().flat_map(str::parse).collect();
                }
                _ => {}
            }
        }
        image
    }
}

/// A place for the mounts of containers, and the programs that they find.
pub struct Host {
    directory: TempDir,
}

/// What a node would serve with.
pub type Effective = BTreeMap<String, String>;

impl Host {
    pub fn new() -> Host {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let host = Host { directory };
        fs::create_dir(host.path("bin")).expect("it is empty");
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A program that containers find before those of this machine.
    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file can be written");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, mode).expect("it is ours");
    }

    /// Runs a script of a container. Paths below a mount lead to what is mounted there.
    fn run(
        &self,
        script: &str,
        environment: &BTreeMap<String, String>,
        mounts: &[(String, PathBuf)],
    ) -> Output {
        let inside = |text: &str| {
            mounts.iter().fold(text.to_owned(), |text, (mount, path)| {
                text.replace(mount, &path.display().to_string())
            })
        };
        let programs = format!("{}:/usr/bin:/bin", self.path("bin").display());
        Command::new("/bin/sh")
            .args(["-euc", &inside(script)])
            .env_clear()
            .envs(
                environment
                    .iter()
                    .map(|(name, value)| (name, inside(value))),
            )
            .env("PATH", programs)
            .current_dir(self.directory.path())
            .output()
            .expect("there is a shell")
    }

    /// Runs a script that makes certificates, as whoever runs the test: it need not give files to others.
    pub fn make(
        &self,
        script: &str,
        environment: &BTreeMap<String, String>,
        mounts: &[(String, PathBuf)],
    ) -> Result<(), String> {
        self.program("quorumq", &format!("exec '{}' \"$@\"", binary().display()));
        self.program("chown", "true");
        let output = self.run(script, environment, mounts);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{script:?}: {output:?}")),
        }
    }

    /// What `quorumq check` has to say where a node would be started, and what that would serve with.
    pub fn check(
        &self,
        script: &str,
        environment: &BTreeMap<String, String>,
        mounts: &[(String, PathBuf)],
    ) -> Result<Effective, String> {
        let program = binary();
        let check = format!("'{}' check --output json", program.display());
        self.program(
            "quorumq",
            &format!("[ \"$*\" = serve ] || exit 64\n{check} || exit\nexec {check} --effective"),
        );
        let output = self.run(script, environment, mounts);
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let wrong = String::from_utf8_lossy(&output.stderr);
            return Err(format!("quorumq check: {said}{wrong}"));
        }
        let lines = said.lines().skip(1).map(|line| {
            let entry: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let text = |name: &str| entry[name].as_str().map(str::to_owned);
            text("key")
                .zip(text("value"))
                .ok_or_else(|| line.to_owned())
        });
        lines.collect()
    }

    /// Runs the program itself, to make certificates in a directory.
    pub fn quorumq(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new(binary())
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .expect("the binary can be run");
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{arguments:?}: {output:?}")),
        }
    }

    /// Puts a file where a volume has it.
    pub fn put(&self, from: &Path, to: &Path) -> Result<(), String> {
        let directory = to.parent().unwrap_or(to);
        let done = fs::create_dir_all(directory).and_then(|()| fs::copy(from, to));
        done.map(drop)
            .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
    }
}

/// What a node would serve with, without quotation marks around it; empty if there is no such key.
pub fn value<'a>(effective: &'a Effective, key: &str) -> &'a str {
    effective
        .get(key)
        .map_or("", |value| value.trim_matches('"'))
}

/// The port of an address.
pub fn port(address: &str) -> Option<u16> {
    address
        .trim_matches(['[', ']', '"'])
        .rsplit_once(':')?
        .1
        .parse()
        .ok()
}

/// The addresses of the listeners, as the reference of the configuration shows them.
pub fn listeners(effective: &Effective) -> Vec<&str> {
    let text = value(effective, "listeners");
    let addresses = text.split("address = \"").skip(1);
    addresses
        .filter_map(|rest| rest.split('"').next())
        .collect()
}
