//! Exchanges made by hand, and the hooks that see them.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::host::{self, Exchange};
use weir_plugin::{Flow, Plugin, Tables};
use weir_router::Query;
use weir_telemetry::metrics::Recorder;
use weir_wire::head::Limits;
use weir_wire::target::PathRules;

/// One client's exchanges, one after the other.
pub(crate) struct Visit {
    pub(crate) exchange: Exchange,
    tables: Arc<Tables>,
}

impl Visit {
    pub(crate) fn new(tables: &Arc<Tables>) -> Self {
        let mut exchange = Exchange::default();
        exchange.tables = Some(Rc::new(Arc::clone(tables)));
        Self { exchange, tables: Arc::clone(tables) }
    }

    /// Takes in a request, as the data plane does, and finds its route.
    pub(crate) fn request(&mut self, head: &str) {
        let x = &mut self.exchange;
        let tables = x.tables.take();
        x.reset();
        x.tables = tables;
        x.request.buffer.clear();
        x.request.buffer.extend(head.as_bytes());
        let whole = x.request.parse(&Limits::default()).unwrap();
        assert!(whole.is_some(), "the head ends: {head:?}");
        x.request.accept_head(PathRules::default()).unwrap();
        let mut params = std::mem::take(&mut x.params);
        let query = Query {
            method: x.request.method_bytes(),
            host: x.request.host(),
            host_port: x.request.host_port(),
            path: x.request.path(),
            remote: x.client.addr,
            source: &*x,
        };
        let matched = self.tables.router.as_ref().and_then(|router| router.find(&query, &mut params));
        x.matched = matched;
        x.params = params;
    }

    /// Runs the hooks of the request phases.
    pub(crate) fn run(&mut self, plugin: &dyn Plugin) -> Flow {
        let mut cx = host::request(&mut self.exchange);
        match plugin.rewrite(&mut cx) {
            Flow::Continue => plugin.access(&mut cx),
            flow => flow,
        }
    }

    /// Ends the exchange.
    pub(crate) fn log(&mut self, plugin: &dyn Plugin, recorder: &Recorder) {
        self.exchange.prepare_log();
        plugin.log(&host::log(&self.exchange, recorder));
    }
}
