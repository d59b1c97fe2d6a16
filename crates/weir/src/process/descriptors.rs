//! The file descriptors of the process, shared out among its parts: clients never use up the descriptors that upstream
//! connections, the pages for status and metrics, the Admin API and files need.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_config::settings::Limits;

/// Maximum number of descriptors for files opened now and then: logs, stores, rules, health checks.
const FILES: u64 = 32;
/// Maximum number of connections of each server for metrics, status and control.
const PAGES: u64 = 64;
/// Connections of the Admin API, as a multiple of those of one such server.
const ADMIN: u64 = 4;

/// Maximum numbers of connections of the servers beside the data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Servers {
    /// Connections of each server for metrics, status and control.
    pub(crate) pages: usize,
    /// Connections of the Admin API.
    pub(crate) admin: usize,
}

/// Raises the soft limit to the hard one. Returns the limit in force, `None` for unlimited.
pub(crate) fn raise() -> Result<Option<u64>, String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(current);
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|error| {
        let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        format!("cannot raise the limit of file descriptors from {} to {}: {error}", text(current), text(maximum))
    })?;
    Ok(maximum)
}

/// The limit in force, `None` for unlimited.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Descriptors that are open now.
pub(crate) fn open() -> u64 {
    // One entry is the descriptor of the listing itself.
    fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count().saturating_sub(1) as u64)
}

/// Lowers the limits of connections to those that fit into `limit` descriptors, of which `open` are in use before
/// anything is served. Servers and files are deducted first. At most a quarter of the rest is for idle upstream
/// connections and mirrored requests. Clients get half of the remainder, the upstream connections of their requests the
/// other half. Where there are listeners of UDP, a quarter of what is free at first is for its sessions.
pub(crate) fn share(limit: Option<u64>, open: u64, workers: u64, udp: bool, limits: &mut Limits) -> Servers {
    let Some(limit) = limit else { return Servers { pages: PAGES as usize, admin: (ADMIN * PAGES) as usize } };
    let pages = (limit / 64).clamp(4, PAGES);
    let servers = Servers { pages: pages as usize, admin: (ADMIN * pages) as usize };
    // Each worker has its own listener at each address, and two descriptors to wait with.
    let mut free = limit.saturating_sub(open + workers * 4 + FILES.min(limit / 8) + (3 + ADMIN) * pages);
    if udp {
        let sessions = u64::from(limits.udp_sessions).min(free / 4).max(1);
        limits.udp_sessions = sessions as u32;
        free = free.saturating_sub(sessions);
    }
    let spare = free / 4 / workers;
    let copies = u64::from(limits.mirror_copies).min(spare / 4);
    let idle = u64::from(limits.upstream_idle_connections).min(spare - copies);
    let clients = free.saturating_sub((copies + idle) * workers) / 2;
    limits.mirror_copies = copies as u32;
    limits.upstream_idle_connections = idle as u32;
    limits.connections = u64::from(limits.connections).min(clients.max(1)) as u32;
    servers
}

#[cfg(test)]
mod tests {
    use super::share;
    use weir_config::settings::Limits;

    #[test]
    fn clients_leave_what_others_need() {
        let most = Limits::default();
        for limit in [40, 64, 128, 256, 1024, 4096, 20_000, 65_536, 262_144, 1_048_576] {
            for (workers, open, udp) in [(1, 12, false), (2, 20, false), (2, 20, true), (64, 30, false)] {
                let mut limits = Limits::default();
                let servers = share(Some(limit), open, workers, udp, &mut limits);
                let kept = u64::from(limits.upstream_idle_connections) + u64::from(limits.mirror_copies);
                let clients = u64::from(limits.connections);
                let all = open + 3 * servers.pages as u64 + servers.admin as u64 + kept * workers + 2 * clients;
                let all = all + if udp { u64::from(limits.udp_sessions) } else { 0 };
                assert!(
                    all <= limit || clients == 1 || limits.udp_sessions == 1,
                    "{all} of {limit} for {workers} workers: {limits:?}"
                );
                assert!(clients >= 1 && servers.pages >= 4);
                if limit >= 1024 && workers < 64 && !udp {
                    assert!(clients * 4 >= limit || clients == u64::from(most.connections), "{limit}: {limits:?}");
                    assert!(limits.mirror_copies > 0 && limits.upstream_idle_connections > 0);
                }
            }
        }
        let mut limits = Limits::default();
        assert_eq!(share(Some(1_048_576), 20, 2, true, &mut limits), share(None, 20, 2, true, &mut Limits::default()));
        assert_eq!(limits, most);
    }
}
