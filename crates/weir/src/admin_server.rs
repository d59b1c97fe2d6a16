//! The Admin API of this gateway: who may use it, and how it is spoken to.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use rustls::ServerConfig;
use weir_admin::{Keys, Options, server_config};
use weir_config::Settings;
use weir_config::settings::AdminTls;

use crate::admin_keys::{self, Made};

/// Everything about the API that is known before anything is served.
#[derive(Debug)]
pub(crate) struct AdminSetup {
    pub(crate) options: Options,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Keys that were made now.
    pub(crate) made: Option<Made>,
}

impl AdminSetup {
    /// Reads what the settings name. `folder` is the data directory, if there is one.
    ///
    /// # Errors
    /// A setting or a file that it names is wrong.
    pub(crate) fn new(settings: &Settings, folder: Option<&Path>) -> anyhow::Result<Self> {
        let tls = tls(&settings.admin.tls)?;
        let (keys, made): (Keys, _) = admin_keys::settle(settings, folder)?;
        let options = Options {
            keys,
            allow: settings.admin.allow.clone(),
            cors: settings.admin.cors,
            body_size: settings.limits.admin_body.as_usize(),
        };
        Ok(Self { options, tls, made })
    }
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
        fs::read_to_string(path).with_context(|| format!("admin.tls.{setting}: cannot read {path}"))
    };
    let authorities = if client_ca.is_empty() { None } else { Some(read("client_ca", client_ca)?) };
    let (cert, key) = (read("cert", cert)?, read("key", key)?);
    server_config(&cert, &key, authorities.as_deref()).map(Some).map_err(|reason| anyhow!(reason))
}
