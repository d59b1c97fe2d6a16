//! Exchanges made by hand, and the hooks that see them.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{Exchange, Flow, LogCx, Origin, Plugin, RequestCx, ResponseCx, Tables};
use weir_router::Query;
use weir_telemetry::metrics::Recorder;
use weir_wire::head::Limits;
use weir_wire::target::PathRules;

/// One client's exchanges, one after the other.
pub(crate) struct Visit {
    pub(crate) exchange: Exchange,
    tables: Rc<Arc<Tables>>,
}

impl Visit {
    pub(crate) fn new(tables: &Rc<Arc<Tables>>) -> Self {
        Self { exchange: Exchange::default(), tables: Rc::clone(tables) }
    }

    /// Takes in a request, as the data plane does, and finds its route.
    pub(crate) fn request(&mut self, head: &str) {
        let x = &mut self.exchange;
        x.reset();
        x.request.buffer.clear();
        x.request.buffer.extend(head.as_bytes());
        let whole = x.request.head.parse(x.request.buffer.bytes(), &Limits::default()).unwrap();
        assert!(whole, "the head ends: {head:?}");
        x.request.accept_head(PathRules::default()).unwrap();
        x.tables = Some(Rc::clone(&self.tables));
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
        let mut cx = RequestCx(&mut self.exchange);
        match plugin.rewrite(&mut cx) {
            Flow::Continue => plugin.access(&mut cx),
            flow => flow,
        }
    }

    /// Begins an upstream's response and runs the hook of its phase.
    pub(crate) fn respond(&mut self, plugin: &dyn Plugin, status: u16) -> Flow {
        self.exchange.response.begin(status, Origin::Upstream);
        plugin.response(&mut ResponseCx(&mut self.exchange))
    }

    /// Ends the exchange.
    pub(crate) fn log(&mut self, plugin: &dyn Plugin, recorder: &Recorder) {
        self.exchange.prepare_log();
        plugin.log(&LogCx { exchange: &self.exchange, recorder });
    }
}
