//! The number of plugins that a gateway may have.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use schemars::Schema;
use serde_json::{Map, json};
use weir_config::{Diagnostic, Node, Scope};
use weir_plugin::host::{Definition, Instance, Prepared};
use weir_plugin::{BuildCx, Compiled, Flow, Phases, Plugin, RequestCx};

use crate::harness::{Origin, RawClient, get, route_with};
use crate::request_bodies::Plane;

/// A plugin that counts its requests.
struct Numbered {
    name: &'static str,
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Plugin for Counting {
    fn access(&self, _: &mut RequestCx<'_>) -> Flow {
        CALLS.fetch_add(1, SeqCst);
        Flow::Continue
    }
}

impl Definition for Numbered {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        0
    }

    fn phases(&self) -> Phases {
        Phases::ACCESS
    }

    fn doc(&self) -> &'static str {
        ""
    }

    fn example(&self) -> &'static str {
        ""
    }

    fn schema(&self) -> Schema {
        Schema::default()
    }

    fn check(&self, _: Scope, _: &Node) -> (Vec<Diagnostic>, Option<Prepared>) {
        let compiled = Compiled::ready(Counting);
        (Vec::new(), Some(Prepared { plugin: self.name, compiled, size: 0, reads_body: false }))
    }

    fn build(&self, _: Prepared, _: &BuildCx<'_>) -> Result<Instance, Diagnostic> {
        Ok(Instance { plugin: Arc::new(Counting), reads_body: false })
    }
}

fn plugins(count: usize) -> &'static [&'static dyn Definition] {
    let numbered = |number: usize| {
        let name: &'static str = format!("plugin-{number}").leak();
        let definition: &'static dyn Definition = Box::leak(Box::new(Numbered { name }));
        definition
    };
    (0..count).map(numbered).collect::<Vec<_>>().leak()
}

/// A cut list would leave out a plugin, perhaps one that guards something.
#[test]
fn all_plugins_run_or_nothing_does() {
    let origin = Origin::hello();
    let start = |count| {
        let plugins = plugins(count);
        let confs: Map<_, _> = plugins.iter().map(|plugin| (plugin.name().to_owned(), json!({}))).collect();
        let route = route_with(json!({ "plugins": confs }), json!({ "nodes": { origin.node(): 1 } }));
        Plane::serve(plugins, &route, &[])
    };
    let plane = start(255).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(RawClient::connect(plane.addr).request(get("/")).status, 200);
    assert_eq!(CALLS.load(SeqCst), 255);
    let faults = start(256).err().expect("too many");
    let mut text = String::new();
    faults.iter().for_each(|fault| write!(text, "{fault}").expect("a text"));
    assert!(text.contains("256 plugins are registered: there may be 255"), "{text}");
}
