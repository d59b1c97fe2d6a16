//! Standard metrics of this process, named as in Prometheus' client libraries.

use std::fs;

/// Figures from the kernel about this process. An unreadable figure is `None` and left out of the page.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Process {
    /// User and system time in seconds.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) open_fds: Option<u64>,
    /// Soft limit; `None` also if there is no limit.
    pub(super) max_fds: Option<u64>,
    /// Start time in seconds since 1970.
    pub(super) start_time: Option<f64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let status = fs::read_to_string("/proc/self/status").ok();
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| line_value(&text, "btime"));
        // Counts from field 3 of proc(5): utime is 14, stime 15, starttime 22.
        let field = |number: usize| stat.as_deref().and_then(|stat| stat_field(stat, number));
        Self {
            cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) as f64 / ticks),
            resident_bytes: status.as_deref().and_then(|text| line_value(text, "VmRSS:")).map(|kib| kib * 1024),
            virtual_bytes: status.as_deref().and_then(|text| line_value(text, "VmSize:")).map(|kib| kib * 1024),
            // One of the descriptors belongs to the directory listing itself.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1)),
            max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            start_time: field(22).zip(boot).map(|(start, boot)| boot as f64 + start as f64 / ticks),
        }
    }
}

/// User and system time in seconds, and resident bytes: the figures that cost little to read.
pub(super) fn usage_of_process() -> (Option<f64>, Option<u64>) {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    let field = |number: usize| stat.as_deref().and_then(|stat| stat_field(stat, number));
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) as f64 / ticks);
    (cpu, field(24).map(|pages| pages * rustix::param::page_size() as u64))
}

/// Field `number` (from 1) of `/proc/PID/stat`. The command name, field 2, may contain spaces and parentheses.
fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// First number of the line that starts with `name`.
fn line_value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_command_name() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 7 8 0 0 20 0 4 0 9000 1 2";
        for (number, value) in [(14, Some(7)), (15, Some(8)), (22, Some(9000)), (99, None), (3, None)] {
            assert_eq!(stat_field(stat, number), value, "field {number}");
        }
        assert_eq!(line_value("VmSize:\t  12 kB\nVmRSS:\t   34 kB\n", "VmRSS:"), Some(34));
        assert_eq!(line_value("cpu 1 2\n", "btime"), None);
    }

    #[test]
    fn this_process_has_plausible_figures() {
        let process = Process::read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.open_fds.is_some_and(|fds| fds >= 3), "{process:?}");
        assert!(process.cpu_seconds.is_some(), "{process:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
        let age = now.as_secs_f64() - process.start_time.expect("a start time");
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
    }
}
