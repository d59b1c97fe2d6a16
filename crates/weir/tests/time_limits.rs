//! Time limits of plugins that wait.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_plugin::host::Definition;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Io, LocalFuture, Phases, Plugin, RequestCx};

use crate::harness::RawClient;
use crate::plugin_fields::Plane;

/// A plugin that waits for ever, and has no time limit of its own.
#[derive(Debug)]
struct Waiter;

static DEFINITIONS: &[&dyn Definition] = &[&Waiter];

impl Define for Waiter {
    const NAME: &'static str = "waiter";
    const PRIORITY: i32 = 1;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Waits for ever.";
    const EXAMPLE: &'static str = "{}";

    type Conf = BTreeMap<String, bool>;
    type ConsumerConf = ();

    fn compile(_: Self::Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Self))
    }
}

impl Plugin for Waiter {
    fn access(&self, _: &mut RequestCx<'_>) -> Flow {
        Flow::Suspend
    }

    fn request_io<'a>(&'a self, _: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(pending())
    }
}

#[test]
fn a_plugin_without_a_limit_of_its_own_has_that_of_the_settings() {
    let mut plane = Plane::with(DEFINITIONS, &[("timeouts.plugin", "300ms")]);
    assert!(plane.serve(&json!({ "routes": [{ "id": 1, "uri": "/*", "plugins": { "waiter": {} } }] })));
    let mut client = RawClient::connect(plane.address());
    let began = Instant::now();
    let answer = client.request("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer.status, 504);
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
}
