//! The memory of this host, as far as this process may use it: all of it, or what its control groups allow.
//!
//! *Source*: proc_meminfo(5); the kernel's cgroup-v2.rst, "Memory Interface Files", and cgroup-v1/memory.rst.
//!
//! *Not here*: what is done with the memory, in `cluster`.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where control groups are, and what the kernel calls their limit and their use: version 2, then version 1.
const HIERARCHIES: [(&str, &str, &str); 2] = [
    ("sys/fs/cgroup", "memory.max", "memory.current"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
];

/// Memory that processes may use together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostMemory {
    pub(crate) total_bytes: usize,
    pub(crate) free_bytes: usize,
    /// The control group that limits it, if it is not the whole host's.
    group: Option<PathBuf>,
}

impl HostMemory {
    /// That of this process; none if the system does not tell.
    pub(crate) fn read() -> Option<Self> {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
        };
        let (total_bytes, free_bytes) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
        let mut memory = Self { total_bytes, free_bytes, group: None };
        let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            // Number, controllers, path; version 2 has number 0 and names no controllers.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let hierarchy = match controllers {
                "" => HIERARCHIES[0],
                _ if controllers.split(',').any(|name| name == "memory") => HIERARCHIES[1],
                _ => continue,
            };
            memory.limit(root, path.trim_start_matches('/'), hierarchy);
        }
        Some(memory)
    }

    /// Takes a control group's limits into account, and those of all that it is part of.
    fn limit(&mut self, root: &Path, path: &str, (mount, limit, usage): (&str, &str, &str)) {
        let mount = root.join(mount);
        let own = mount.join(path);
        // In a container the path may be that outside of it: then the mount is the group's own.
        for group in own.ancestors().take_while(|group| group.starts_with(&mount)) {
            // Where nothing limits it, the file is missing, says "max", or a number that no host has.
            let Some(total) = number(&group.join(limit)) else { continue };
            if total < self.total_bytes {
                self.total_bytes = total;
                self.group = Some(group.to_owned());
            }
            let used = number(&group.join(usage)).unwrap_or(0);
            let reclaimable = file_cache(&group.join("memory.stat"));
            let free = total.saturating_sub(used.saturating_sub(reclaimable));
            self.free_bytes = self.free_bytes.min(free);
        }
    }
}

impl fmt::Display for HostMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            None => write!(out, "this host has {} MiB", self.total_bytes >> 20),
            Some(group) => {
                let (group, mebibytes) = (group.display(), self.total_bytes >> 20);
                write!(out, "the control group {group} allows {mebibytes} MiB")
            }
        }
    }
}

fn number(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Memory of cached files that nobody has used lately, which the kernel takes back before it refuses any.
fn file_cache(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    field("total_inactive_file").or_else(|| field("inactive_file")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A host of 4096 MiB, 3072 of them free, with these files besides.
    fn host(name: &str, files: &[(&str, &str)]) -> HostMemory {
        let root = std::env::temp_dir().join(format!("gannet-host-{name}-{}", std::process::id()));
        let meminfo = ("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let memory = HostMemory::read_below(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        HostMemory {
            group: memory.group.map(|group| group.strip_prefix(&root).unwrap().into()),
            ..memory
        }
    }

    #[test]
    fn without_a_limit_it_is_the_hosts() {
        for groups in ["", "0::/\n", "0::/unlimited\n", "4:memory:/unlimited\n"] {
            let files = [
                ("proc/self/cgroup", groups),
                ("sys/fs/cgroup/unlimited/memory.max", "max\n"),
                ("sys/fs/cgroup/memory/unlimited/memory.limit_in_bytes", "9223372036854771712\n"),
            ];
            let memory = host("free", &files);
            assert_eq!((memory.total_bytes, memory.free_bytes), (4096 * MIB, 3072 * MIB));
            assert_eq!(memory.to_string(), "this host has 4096 MiB");
        }
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let memory = host(
            "v2",
            &[
                ("proc/self/cgroup", "1:cpu:/elsewhere\n0::/slice/service\n"),
                ("sys/fs/cgroup/slice/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/slice/memory.current", "805306368\n"),
                ("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 268435456\n"),
                ("sys/fs/cgroup/slice/service/memory.max", "2147483648\n"),
            ],
        );
        assert_eq!((memory.total_bytes, memory.free_bytes), (1024 * MIB, 512 * MIB));
        let said = memory.to_string();
        assert_eq!(said, "the control group sys/fs/cgroup/slice allows 1024 MiB");
    }

    #[test]
    fn in_a_container_the_root_has_the_limit() {
        let memory = host(
            "v1",
            &[
                ("proc/self/cgroup", "5:cpu,memory:/docker/123\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "134217728\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 67108864\n",
                ),
            ],
        );
        assert_eq!((memory.total_bytes, memory.free_bytes), (512 * MIB, 448 * MIB));
    }
}
