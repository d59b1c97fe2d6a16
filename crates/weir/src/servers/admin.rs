//! The Admin API of this gateway: its address, keys and TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use weir_admin::{
    Api, Configuration, FamilyDoor, Gateway, Hosts, Keys, Leaving, Options, Rest, Ui, serve, server_config,
};
use weir_config::settings::{AdminTls, Endpoint};
use weir_config::{Settings, file};
use weir_kong_admin::KongAdmin;
use weir_proxy::client_verifier;

use crate::servers::admin_keys;

/// Default address of the API for resources in a store.
pub(crate) const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9180);

/// Default address of Kong's API.
pub(crate) const KONG_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);

/// The parts of the API that are built before any socket is opened.
#[derive(Debug)]
pub(crate) struct AdminSetup {
    /// Address of the API.
    pub(crate) endpoint: Endpoint,
    options: Options,
    tls: Option<Arc<ServerConfig>>,
    /// Maximum number of concurrent connections.
    connections: usize,
    /// Path of the API.
    path: &'static str,
}

impl AdminSetup {
    /// Reads the files named in the settings, and shows newly generated keys. `folder` is the data directory, if there is
    /// one; without a data directory the API listens only if a setting gives its address. Returns `None` if the API does
    /// not listen.
    ///
    /// # Errors
    /// A setting, or a file named in one, is invalid.
    pub(crate) fn new(settings: &Settings, folder: Option<&Path>, connections: usize) -> anyhow::Result<Option<Self>> {
        let usual = match folder {
            Some(_) => Endpoint::On(ADMIN),
            None => Endpoint::Off,
        };
        let endpoint = settings.listen.admin.unless_given(usual);
        if endpoint == Endpoint::Off {
            return Ok(None);
        }
        let tls = tls(&settings.admin.tls)?;
        let (keys, made) = admin_keys::settle(settings, folder)?;
        if let Some(made) = made {
            made.show();
        }
        warn_of_openness(settings, endpoint);
        Ok(Some(Self { endpoint, options: options(settings, keys)?, tls, connections, path: "/apisix/admin" }))
    }

    /// The same for Kong's Admin API, which needs a key only where a setting gives one, or where other machines reach it.
    ///
    /// # Errors
    /// As [`Self::new`], and an address that other machines reach without a key.
    pub(crate) fn of_kong(settings: &Settings, connections: usize) -> anyhow::Result<Option<Self>> {
        let endpoint = settings.listen.admin.unless_given(Endpoint::On(KONG_ADMIN));
        let Some(address) = endpoint.addr() else { return Ok(None) };
        let tls = tls(&settings.admin.tls)?;
        let given = !settings.admin.key.expose().is_empty() || !settings.admin.keys.is_empty();
        let keys = match given || !settings.viewer.key.expose().is_empty() {
            true => admin_keys::settle(settings, None)?.0,
            false if address.ip().is_loopback() || !settings.admin.key_required => Keys::none_required(),
            false => bail!(
                "listen.admin: other machines reach {address}, so the Admin API needs a token there: set admin.key, or \
                 admin.key_required to false if the network keeps them out"
            ),
        };
        if !address.ip().is_loopback() {
            warn_of_openness(settings, endpoint);
        }
        Ok(Some(Self { endpoint, options: options(settings, keys)?, tls, connections, path: "" }))
    }

    /// Checks the settings of the API beside a rules file, without generating a key.
    pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
        if settings.listen.admin.unless_given(Endpoint::Off) == Endpoint::Off {
            return Ok(());
        }
        tls(&settings.admin.tls)?;
        admin_keys::settle(settings, None).map(drop)
    }

    /// The line for standard output with the address of the API.
    pub(crate) fn announcement(&self, listener: &TcpListener) -> anyhow::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let addr = listener.local_addr()?;
        let own = if self.options.dashboard { format!("dashboard on {scheme}://{addr}/\n") } else { String::new() };
        let ui =
            if self.options.has_ui() { format!("files of admin.ui on {scheme}://{addr}/ui/\n") } else { String::new() };
        let path = self.path;
        Ok(format!("admin on {scheme}://{addr}{path}\n{own}{ui}"))
    }

    /// Answers requests to Kong's API, until the gateway ends.
    pub(crate) async fn serve_kong(
        self,
        listener: TcpListener,
        leaving: Leaving,
        rest: Arc<Rest>,
        api: Arc<KongAdmin>,
        configuration: Arc<dyn Configuration>,
        gateway: Arc<dyn Gateway>,
    ) {
        let mut door = FamilyDoor::new(api, self.options.clone());
        if self.options.dashboard {
            door = door.with_dashboard(Api::new(configuration, gateway, self.options).beside("kong"));
        }
        serve(listener, self.connections, self.tls, leaving, rest, door.into()).await;
    }

    /// Answers requests, until the gateway ends. With `standalone`, the configuration can only be replaced as a whole.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        leaving: Leaving,
        rest: Arc<Rest>,
        configuration: Arc<dyn Configuration>,
        gateway: Arc<dyn Gateway>,
        standalone: bool,
    ) {
        let mut api = Api::new(configuration, gateway, self.options);
        if standalone {
            api = api.standalone();
        }
        serve(listener, self.connections, self.tls, leaving, rest, api.into()).await;
    }
}

/// Access and limits of the Admin API, from the settings.
fn options(settings: &Settings, keys: Keys) -> anyhow::Result<Options> {
    Ok(Options {
        keys,
        allow: settings.admin.allow.clone(),
        cors: settings.admin.cors,
        hosts: Hosts::new(&settings.admin.hosts),
        ui: ui(&settings.admin.ui)?,
        dashboard: settings.admin.dashboard,
        tls: !settings.admin.tls.cert.is_empty(),
        body_size: settings.limits.admin_body.as_usize(),
        memory: settings.limits.admin_memory.as_usize(),
        lists: settings.limits.admin_lists as usize,
        answer_size: settings.limits.admin_answer.as_usize(),
    })
}

/// Warns of settings that give more access than most deployments want.
fn warn_of_openness(settings: &Settings, endpoint: Endpoint) {
    let admin = &settings.admin;
    if !admin.key_required {
        tracing::warn!("admin.key_required is false: any client that reaches the Admin API may change everything");
    }
    if endpoint.addr().is_some_and(|addr| !addr.ip().is_loopback()) && admin.tls.cert.is_empty() {
        tracing::warn!(
            "the Admin API is reachable from other machines without TLS: its keys can be read on the network"
        );
    }
}

fn ui(folder: &str) -> anyhow::Result<Option<Ui>> {
    if folder.is_empty() {
        return Ok(None);
    }
    let ui = Ui::new(Path::new(folder));
    ui.map(Some).with_context(|| format!("admin.ui: expected a folder with an index.html, found {folder}"))
}

fn tls(settings: &AdminTls) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let AdminTls { cert, key, client_ca } = settings;
    if cert.is_empty() {
        return match (key.is_empty(), client_ca.is_empty()) {
            (true, true) => Ok(None),
            (false, _) => bail!("admin.tls.key has no effect without admin.tls.cert"),
            (true, false) => bail!("admin.tls.client_ca has no effect without admin.tls.cert and admin.tls.key"),
        };
    }
    if key.is_empty() {
        bail!("admin.tls.cert needs admin.tls.key");
    }
    let read = |setting: &str, path: &str| {
        file::read_text(path.as_ref()).with_context(|| format!("admin.tls.{setting}: cannot read {path}"))
    };
    let verifier = if client_ca.is_empty() {
        None
    } else {
        let authorities = read("client_ca", client_ca)?;
        Some(client_verifier(&authorities).map_err(|reason| anyhow!("admin.tls.client_ca: {reason}"))?)
    };
    let (cert, key) = (read("cert", cert)?, read("key", key)?);
    server_config(&cert, &key, verifier).map(Some).map_err(|reason| anyhow!(reason))
}
