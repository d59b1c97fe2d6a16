//! Notifications to systemd, and the sockets that systemd opens for the gateway. Without systemd, nothing here has an
//! effect.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use listenfd::ListenFd;
pub(crate) use sd_notify::NotifyState;
use tokio::sync::RwLock;
use tokio::time::{MissedTickBehavior, interval};
use weir_config::settings::{Endpoint, Listen, ListenAddr};
use weir_proxy::DataPlane;

use crate::process::handover::InheritedSocket;
use crate::process::inherited::address;

/// Environment variables meant for one process and not for its successor.
pub(crate) const OF_ONE_PROCESS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// True if a service manager expects notifications from this process.
pub(crate) fn listens() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Sends notifications to systemd.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd (NOTIFY_SOCKET)");
    }
}

/// Notifies systemd that a reload begins; [`NotifyState::Ready`] marks its end.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify systemd of the reload"),
    }
}

/// Notifies systemd twice in each interval of the unit's `WatchdogSec=` that all workers make progress. Runs for ever.
/// While a worker is stuck, no notification is sent, so that systemd restarts the gateway.
pub(crate) async fn watchdog(data_plane: Arc<RwLock<DataPlane>>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match data_plane.read().await.moves(limit / 2) {
            Ok(()) => notify(&[NotifyState::Watchdog]),
            Err(worker) => {
                tracing::error!(worker, "a worker is stuck; the systemd watchdog is not notified (WatchdogSec=)")
            }
        }
    }
}

/// The sockets that systemd has opened (`LISTEN_FDS`). `FileDescriptorName=` of the socket unit names their purpose:
/// `http`, `https`, `tcp`, `udp`, `metrics` or `status`; a socket without the name is for traffic.
pub(crate) fn activated() -> anyhow::Result<Vec<InheritedSocket>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = ListenFd::from_env();
    let mut found = Vec::new();
    for number in 0..sockets.len() {
        let name = names.next().unwrap_or_default();
        let setting = match name {
            "http" | "" | "unknown" => "listen.http",
            "https" => "listen.https",
            "tcp" => "listen.tcp",
            "udp" => "listen.udp",
            "metrics" => "listen.metrics",
            "status" => "listen.status",
            _ if name.ends_with(".socket") => "listen.http",
            _ => {
                bail!(
                    "systemd passes a socket called `{name}`; FileDescriptorName= has to be http, https, tcp, udp, metrics or status"
                )
            }
        };
        let taken = match setting {
            "listen.udp" => take_udp(&mut sockets, number),
            _ => take(&mut sockets, number),
        };
        let socket = taken.with_context(|| {
            format!("systemd passes a socket called `{name}` that cannot be used for it (ListenStream= is needed, ListenDatagram= for udp, and Accept=no)")
        })?;
        let asked = address(&socket).context("systemd passes a socket without an address")?.to_string();
        found.push(InheritedSocket { setting: setting.to_owned(), asked, activated: true, socket });
    }
    Ok(found)
}

/// A socket for TCP connections or a Unix socket.
fn take(sockets: &mut ListenFd, number: usize) -> io::Result<OwnedFd> {
    let tcp = sockets.take_tcp_listener(number);
    let socket = match tcp {
        Ok(socket) => socket.map(OwnedFd::from),
        Err(_) => sockets.take_unix_listener(number)?.map(OwnedFd::from),
    };
    match socket {
        Some(socket) if rustix::net::sockopt::socket_acceptconn(&socket)? => Ok(socket),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A socket for datagrams of UDP.
fn take_udp(sockets: &mut ListenFd, number: usize) -> io::Result<OwnedFd> {
    sockets.take_udp_socket(number)?.map(OwnedFd::from).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Replaces the addresses in the settings by those of the sockets that systemd opened. Other options of an address stay
/// as set.
pub(crate) fn replace(listen: &mut Listen, sockets: &[InheritedSocket]) -> anyhow::Result<()> {
    let addresses = |setting: &str| {
        let own = sockets.iter().filter(|passed| passed.activated && passed.setting == setting);
        let mut found = Vec::new();
        for address in own.filter_map(|passed| address(&passed.socket)) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    };
    for (setting, list) in [
        ("listen.http", &mut listen.http),
        ("listen.https", &mut listen.https),
        ("listen.tcp", &mut listen.tcp),
        ("listen.udp", &mut listen.udp),
    ] {
        let found = addresses(setting);
        if !found.is_empty() {
            let same = |address| list.iter().find(|listener| listener.address == address).cloned();
            *list = found.into_iter().map(|address| same(address.clone()).unwrap_or(address.into())).collect();
        }
    }
    for (setting, endpoint) in [
        ("listen.metrics", &mut listen.metrics),
        ("listen.status", &mut listen.status),
        ("listen.threescale_backend", &mut listen.threescale_backend),
    ] {
        match addresses(setting).as_slice() {
            [] => {}
            [ListenAddr::Tcp(one)] => *endpoint = Endpoint::On(*one),
            _ => bail!("{setting} takes one address, so systemd has to pass one socket for it, for TCP"),
        }
    }
    Ok(())
}
