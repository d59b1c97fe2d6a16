//! APIs of plugins: what a plugin answers itself, at a path of its own. Clients reach it through routes with the plugin
//! `public-api`, and in no other way.

use std::fmt::Debug;
use std::sync::Arc;

use weir_config::Node;
use weir_net::Network;
use weir_wire::method::Method;

use crate::{Invalid, Plugin};

/// An API.
pub trait Api: Debug + Send + Sync {
    /// The name of the plugin that offers it.
    fn plugin(&self) -> &'static str;

    /// The method of its requests.
    fn method(&self) -> Method;

    /// The path of its requests, where no route gives it another.
    fn path(&self) -> &str;

    /// Sets up whatever answers: its [`Plugin::access`], and its [`Plugin::request_io`] where that suspends.
    ///
    /// # Errors
    /// Faults of the metadata.
    fn open(&self, cx: &ApiCx<'_>) -> Result<Arc<dyn Plugin>, Invalid>;
}

/// The gateway around an API that is set up.
#[derive(Debug)]
pub struct ApiCx<'a> {
    /// The `plugin_metadata` of the plugin that offers it, where there is one.
    pub metadata: Option<&'a Node>,
    /// That plugin's position in the registry, as in [`BuildCx::position`](crate::BuildCx).
    pub position: u8,
    /// Sockets, TLS and names for connections of its own.
    pub network: &'a Arc<Network>,
}

/// The APIs of the gateway, set up for a configuration.
pub trait ApiSet: Debug {
    /// All of them.
    ///
    /// # Errors
    /// Faults of the metadata of a plugin.
    fn open(&self) -> Result<Vec<OpenApi>, Invalid>;
}

/// An API that is set up.
pub struct OpenApi {
    /// The method of its requests.
    pub method: Method,
    /// The path of its requests.
    pub path: Box<[u8]>,
    /// Whatever answers.
    pub plugin: Arc<dyn Plugin>,
}

impl Debug for OpenApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.method, String::from_utf8_lossy(&self.path))
    }
}

/// No API at all.
#[derive(Debug)]
pub struct NoApis;

impl ApiSet for NoApis {
    fn open(&self) -> Result<Vec<OpenApi>, Invalid> {
        Ok(Vec::new())
    }
}
