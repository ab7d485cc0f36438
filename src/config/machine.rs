//! What the machine has, for defaults that depend on it.

use std::fs;
use std::path::Path;

/// What is assumed where the system does not tell.
const ASSUMED_BYTES: u64 = 4 << 30;

/// Memory that this process may use: the machine's, or the limit of its control group if that is lower.
pub(super) fn memory_bytes() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let group = group_limit(&read("/proc/self/cgroup"), |path| {
        fs::read_to_string(path).ok()
    });
    let machine = total(&read("/proc/meminfo"));
    machine
        .into_iter()
        .chain(group)
        .min()
        .unwrap_or(ASSUMED_BYTES)
}

/// `MemTotal` of `/proc/meminfo`, bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit of the process's control group and the groups above it, bytes. `groups` is `/proc/self/cgroup`.
fn group_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limit = |path: &Path| read(path)?.trim().parse().ok();
    let of_line = |line: &str| -> Option<u64> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (root, file) = match fields.next()? {
            "" => ("/sys/fs/cgroup", "memory.max"),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = Path::new(root).join(fields.next()?.trim_start_matches('/'));
        let groups = group
            .ancestors()
            .take_while(|group| group.starts_with(root));
        groups.filter_map(|group| limit(&group.join(file))).min()
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts() {
        assert_eq!(
            total("MemFree: 1 kB\nMemTotal:       16 kB\n"),
            Some(16_384)
        );
        let read = |path: &Path| {
            let limit = match path.to_str()? {
                "/sys/fs/cgroup/a/b/memory.max" => "max",
                "/sys/fs/cgroup/a/memory.max" => "5000\n",
                "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => "4000\n",
                _ => return None,
            };
            Some(limit.to_owned())
        };
        assert_eq!(group_limit("0::/a/b\n", read), Some(5_000));
        let both = "0::/a/b\n4:cpu,memory:/c\n3:cpu:/a\n";
        assert_eq!(group_limit(both, read), Some(4_000));
        assert_eq!(group_limit("0::/d\n", read), None);
        assert!(memory_bytes() > 0);
    }
}
