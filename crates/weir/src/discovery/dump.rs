//! File in which the last answer of a registry is kept, for the next start. Its form is APISIX's.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use weir_config::file::{self, MAX_FILE_BYTES};
use weir_config::settings::DiscoveryDump;
use weir_config::{DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::node;

/// Source of nodes that were read from the file.
const SOURCE: &str = "the file of discovery.dump";

/// The file.
pub(super) struct Dump {
    registry: DiscoveryType,
    conf: DiscoveryDump,
    /// Number of servers that have not answered yet, and a guard of the file.
    pending: Mutex<usize>,
}

impl Dump {
    pub(super) fn new(registry: DiscoveryType, conf: &DiscoveryDump, servers: usize) -> Self {
        Self { registry, conf: conf.clone(), pending: Mutex::new(servers) }
    }

    /// Reads the file, if there is one. Its nodes are used until all servers have answered.
    pub(super) fn load(&self, services: &Services) {
        if self.conf.path.is_empty() || !self.conf.load_on_init {
            return;
        }
        match self.read() {
            Ok(found) => services.report(self.registry, SOURCE, found),
            Err(reason) => {
                tracing::warn!(path = self.conf.path, reason, "the nodes of services that were kept are not used");
            }
        }
    }

    /// Notes an answer, which is written to the file; `is_first` for the first one of a server.
    pub(super) fn answered(&self, services: &Services, is_first: bool) {
        if self.conf.path.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first {
            *pending = pending.saturating_sub(1);
            if *pending == 0 {
                services.report(self.registry, SOURCE, HashMap::new());
            }
        }
        let found = services.dump(self.registry);
        let found = found.iter().map(|(service, nodes)| (service.name.clone(), shown(nodes)));
        let text = json!({
            "services": found.collect::<Map<_, _>>(),
            "last_update": now(),
            "expire": self.conf.expire,
        });
        if let Err(error) = write(Path::new(&self.conf.path), text.to_string().as_bytes()) {
            tracing::error!(path = self.conf.path, %error, "the nodes of services cannot be kept in a file");
        }
    }

    fn read(&self) -> Result<HashMap<Service, Vec<NodeAddr>>, String> {
        let text = file::read(self.conf.path.as_ref(), MAX_FILE_BYTES).map_err(|error| error.to_string())?;
        let text: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let written = text["last_update"].as_u64().ok_or("it has no last_update")?;
        let expire = u64::from(self.conf.expire);
        if expire > 0 && written + expire < now() {
            return Err("it is older than dump.expire".to_owned());
        }
        let services = text["services"].as_object().ok_or("it has no services")?;
        let of = |(name, nodes): (&String, &Value)| {
            let nodes = nodes.as_array().into_iter().flatten().filter_map(read_node).collect();
            (Service::named(self.registry, name), nodes)
        };
        Ok(services.iter().map(of).collect())
    }
}

fn read_node(value: &Value) -> Option<NodeAddr> {
    let number = |name: &str| value[name].as_u64();
    node(value["host"].as_str()?, u16::try_from(number("port")?).ok()?, u32::try_from(number("weight")?).ok()?)
}

/// Nodes as APISIX shows them.
pub(super) fn shown(nodes: &[NodeAddr]) -> Value {
    let node = |node: &NodeAddr| {
        let mut shown = json!({ "host": node.host.to_string(), "port": node.port, "weight": node.weight });
        if node.priority != 0 {
            shown["priority"] = node.priority.into();
        }
        shown
    };
    nodes.iter().map(node).collect()
}

/// Replaces the file whole, so that a process that ends meanwhile leaves no half of it.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut beside = PathBuf::from(path);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    beside.set_file_name(name);
    fs::write(&beside, text)?;
    fs::rename(&beside, path)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
