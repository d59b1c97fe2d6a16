//! What systemd is told, and the sockets it opens for the gateway. Without systemd nothing here does anything.

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use listenfd::ListenFd;
pub(crate) use sd_notify::NotifyState;
use tokio::sync::RwLock;
use tokio::time::{MissedTickBehavior, interval};
use weir_config::settings::{Endpoint, Listen, ListenAddr};
use weir_proxy::DataPlane;

use crate::handover::Passed;
use crate::status_server::Draining;

/// Variables that are meant for one process and not for its successor.
pub(crate) const OF_ONE_PROCESS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// Whether whoever started this process waits to be told.
pub(crate) fn listens() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells systemd.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told (NOTIFY_SOCKET)");
    }
}

/// Tells systemd that a reload begins; [`NotifyState::Ready`] tells its end.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "systemd cannot be told of the reload"),
    }
}

/// Tells systemd twice in each interval of the unit's `WatchdogSec=` that the workers are well, for ever.
pub(crate) async fn watchdog(data_plane: Arc<RwLock<DataPlane>>, draining: Draining) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A worker that has drained has ended, and is well.
        if draining.load(Ordering::Relaxed) || data_plane.read().await.ready().is_ok() {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

/// The sockets that systemd has opened (`LISTEN_FDS`). `FileDescriptorName=` of the socket unit says what for: `http`,
/// `https`, `metrics` or `status`; without it a socket is for traffic.
pub(crate) fn activated() -> anyhow::Result<Vec<Passed>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = ListenFd::from_env();
    let mut found = Vec::new();
    for number in 0..sockets.len() {
        let name = names.next().unwrap_or_default();
        let setting = match name {
            "http" | "" | "unknown" => "listen.http",
            "https" => "listen.https",
            "metrics" => "listen.metrics",
            "status" => "listen.status",
            _ if name.ends_with(".socket") => "listen.http",
            _ => {
                bail!("systemd passes a socket called `{name}`; FileDescriptorName= has to be http, metrics or status")
            }
        };
        let socket = sockets.take_tcp_listener(number).and_then(check).with_context(|| {
            format!("systemd passes a socket called `{name}` that is none for TCP connections (ListenStream=)")
        })?;
        let Some(socket) = socket else { continue };
        let asked = socket.local_addr()?.to_string();
        found.push(Passed { setting: setting.to_owned(), asked, activated: true, socket: OwnedFd::from(socket) });
    }
    Ok(found)
}

fn check(socket: Option<TcpListener>) -> io::Result<Option<TcpListener>> {
    match &socket {
        Some(open) if !rustix::net::sockopt::socket_acceptconn(open)? => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen (Accept=no is needed)"))
        }
        _ => Ok(socket),
    }
}

/// Puts the addresses of sockets that systemd opened into the place of those in the settings.
pub(crate) fn replace(listen: &mut Listen, sockets: &[Passed]) -> anyhow::Result<()> {
    let addresses = |setting: &str| -> anyhow::Result<Vec<_>> {
        let own = sockets.iter().filter(|passed| passed.activated && passed.setting == setting);
        let unique: BTreeSet<_> = own.map(|passed| passed.asked.parse()).collect::<Result<_, _>>()?;
        Ok(unique.into_iter().collect())
    };
    for (setting, list) in [("listen.http", &mut listen.http), ("listen.https", &mut listen.https)] {
        let found = addresses(setting)?;
        if !found.is_empty() {
            *list = found.into_iter().map(|address| ListenAddr::Tcp(address).into()).collect();
        }
    }
    for (setting, endpoint) in [("listen.metrics", &mut listen.metrics), ("listen.status", &mut listen.status)] {
        match addresses(setting)?.as_slice() {
            [] => {}
            [one] => *endpoint = Endpoint::On(*one),
            _ => bail!("systemd passes several sockets for {setting}, which takes one address"),
        }
    }
    Ok(())
}
