//! How many file descriptors the process may have: each connection is one, and its upstream connection another.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewer than these are a sign of a system that was never set up for a server.
const FEW: u64 = 4096;

/// Raises the soft limit to the hard one. Returns the limit that holds, `None` for none.
pub(crate) fn raise() -> Result<Option<u64>, String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(current);
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|error| {
        format!("cannot raise the limit of file descriptors from {current:?} to {maximum:?}: {error}")
    })?;
    Ok(maximum)
}

/// What to warn of when the limit is low.
pub(crate) fn shortage(limit: u64, connections: u32) -> Option<String> {
    let connections = u64::from(connections);
    if limit < FEW {
        Some(format!(
            "only {limit} file descriptors are allowed (ulimit -n): each connection takes one and its upstream another"
        ))
    } else if limit < connections {
        Some(format!("limits.connections is {connections}, but only {limit} file descriptors are allowed (ulimit -n)"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::shortage;

    #[test]
    fn a_low_limit_is_told() {
        for (limit, connections, told) in [
            (1024, 100, Some("only 1024")),
            (4096, 4096, None),
            (5000, 65_536, Some("limits.connections is 65536")),
            (1_048_576, 65_536, None),
        ] {
            let found = shortage(limit, connections);
            assert_eq!(found.is_some(), told.is_some(), "{limit} {connections}: {found:?}");
            assert!(found.unwrap_or_default().contains(told.unwrap_or_default()));
        }
    }
}
