//! Upstreams whose nodes a registry knows.

#![allow(clippy::disallowed_types, reason = "compiling and the control thread take the lock, never a worker")]

use std::sync::{Arc, Mutex, PoisonError};

use weir_config::{Diagnostic, NodeAddr};

use super::Upstream;
use super::recipe::Recipe;
use super::services::{Service, Services};

/// Source of the nodes of an upstream.
#[derive(Debug)]
pub(crate) struct Discovered {
    pub(crate) service: Service,
    recipe: Recipe,
    /// The upstream as it was built last, with the nodes that the registry reported.
    last: Mutex<Option<Built>>,
}

/// An upstream, and the nodes that it was built with.
type Built = (Arc<[NodeAddr]>, Arc<Upstream>);

impl Discovered {
    /// The upstream with the nodes that are known now.
    ///
    /// # Errors
    /// As those of [`Recipe::build`].
    pub(crate) fn build(recipe: Recipe, service: Service, services: &Services) -> Result<Upstream, Diagnostic> {
        let nodes = services.nodes(&service).unwrap_or_default();
        let upstream = recipe.build_with(&with_ports(&recipe, &nodes))?;
        let discovered = Some(Arc::new(Self { service, recipe, last: Mutex::default() }));
        Ok(Upstream { discovered, ..upstream })
    }

    /// The upstream with the nodes that are known now.
    pub(crate) fn current(self: &Arc<Self>, services: &Services) -> Option<Arc<Upstream>> {
        let nodes = services.nodes(&self.service).unwrap_or_default();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, built)) = last.as_ref().filter(|(of, _)| *of == nodes) {
            return Some(Arc::clone(built));
        }
        let name = &self.service.name;
        match self.recipe.build_with(&with_ports(&self.recipe, &nodes)) {
            Ok(upstream) => {
                tracing::info!(service = name, nodes = nodes.len(), "the nodes of a service have changed");
                let built = Arc::new(Upstream { discovered: Some(Arc::clone(self)), ..upstream });
                *last = Some((nodes, Arc::clone(&built)));
                Some(built)
            }
            Err(error) => {
                tracing::error!(service = name, %error, "the nodes of a service cannot be used; its last ones stay in use");
                last.as_ref().map(|(_, built)| Arc::clone(built))
            }
        }
    }
}

/// Nodes with the port of the scheme where a registry knows none; streams have no such port, so the node is left out.
fn with_ports(recipe: &Recipe, nodes: &[NodeAddr]) -> Vec<NodeAddr> {
    let usual = recipe.upstream.scheme.default_port();
    let port = |node: &NodeAddr| if node.port == 0 { usual } else { node.port };
    let nodes = nodes.iter().map(|node| NodeAddr { port: port(node), ..node.clone() });
    nodes.filter(|node| node.port != 0).collect()
}
