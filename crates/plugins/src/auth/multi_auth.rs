//! `multi-auth`: the first of several authentication plugins that lets a request pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::{Diagnostic, Node, Scope};
use weir_plugin::host::{Definition, Prepared};
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Failure, Flow, HookCx, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx,
};

use crate::registry::definitions;

/// The definition.
#[derive(Debug)]
pub(crate) struct MultiAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Plugins in the order in which they are tried, each as a mapping of its name to its configuration: `{key-auth: {}}`.
    #[serde(rename = "auth_plugins")]
    #[schemars(length(min = 2))]
    _auth_plugins: Vec<BTreeMap<String, Value>>,
}

impl Define for MultiAuth {
    const NAME: &'static str = "multi-auth";
    const PRIORITY: i32 = 2600;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through as soon as one of several authentication plugins does. They are tried in their order, and have the \
behaviour that they have alone.

If none of them lets it through, the answer is 401 with `{\"message\":\"Authorization Failed\"}`, and with the \
`WWW-Authenticate` of each of them. If one of them could not decide, such as `ldap-auth` without its directory, and no other \
one lets the request through, the request is refused as that plugin refuses it.";
    const EXAMPLE: &'static str = "\
auth_plugins:
  - basic-auth: {}
  - key-auth: {header: X-API-Key, hide_credentials: true}
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let written = cx.conf().get("auth_plugins").and_then(Node::as_seq).unwrap_or_default();
        let mut ways = Vec::new();
        for (at, entry) in written.iter().enumerate() {
            let plugins = entry.as_map().unwrap_or_default();
            if plugins.is_empty() {
                let text = "expected the name of an authentication plugin and its configuration";
                cx.say([Invalid::new(format!("auth_plugins[{at}]"), text)]);
            }
            ways.extend(plugins.iter().map(|(name, conf)| Way::compile(&name.text, conf, at, cx)));
        }
        // Faults have been told by now.
        let ways = ways.into_iter().collect::<Option<Vec<_>>>().filter(|ways| !ways.is_empty())?;
        Some(Compiled::build(move |build| {
            let ways = ways.into_iter().map(|way| way.build(build)).collect::<Result<_, _>>()?;
            Ok(Trying { ways })
        }))
    }
}

/// A plugin that is tried.
struct Way {
    of: &'static dyn Definition,
    /// Its position in the registry, under which it finds consumers.
    position: u8,
    conf: Node,
    prepared: Prepared,
    place: String,
}

impl Way {
    fn compile(name: &str, conf: &Node, at: usize, cx: &CompileCx<'_>) -> Option<Self> {
        let place = format!("auth_plugins[{at}].{name}");
        let mut all = definitions().iter().zip(0u8..).filter(|(known, _)| authenticates(**known));
        let Some((of, position)) = all.find(|(known, _)| known.name() == name) else {
            let names: Vec<_> = definitions().iter().filter(|known| authenticates(**known)).map(|d| d.name()).collect();
            let text = format!("expected one of the plugins {}, found {name}", names.join(", "));
            cx.say([Invalid::new(place, text)]);
            return None;
        };
        let (found, prepared) = of.check(Scope::Route, conf);
        cx.add(found.into_iter().map(|found: Diagnostic| found.under(&place)));
        Some(Self { of: *of, position, conf: conf.clone(), prepared: prepared?, place })
    }

    fn build(self, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        let Self { of, position, conf, prepared, place } = self;
        let own = format!("{}/{}/{place}", cx.place, cx.plugin);
        let inner = BuildCx { plugin: of.name(), place: &own, conf: &conf, metadata: None, position, ..*cx };
        of.build(prepared, &inner).map(|instance| instance.plugin).map_err(|found| {
            let found = found.under(&place);
            Invalid::coded(found.path, *found.code)
        })
    }
}

/// True for a plugin that finds out who calls: one that only has data of consumers does so in no phase of its own.
fn authenticates(known: &dyn Definition) -> bool {
    known.is_auth() && known.phases().contains(Phases::REWRITE)
}

/// An instance.
struct Trying {
    ways: Box<[Arc<dyn Plugin>]>,
}

/// Attempts that have failed.
#[derive(Default)]
struct Failed {
    /// Challenges of those that have refused the request, each with a line of its own.
    challenges: Vec<u8>,
    /// The first plugin that could not decide.
    unable: Option<Failure>,
}

impl Failed {
    /// Takes the result of a plugin; `Some`: no other one is tried.
    fn take(&mut self, cx: &mut RequestCx<'_>, flow: Flow) -> Option<Flow> {
        match flow {
            Flow::Respond(_) => {
                let response = cx.view().response();
                if let Some(challenge) = response.field_str("WWW-Authenticate") {
                    self.challenges.extend_from_slice(challenge);
                    self.challenges.push(b'\n');
                }
                cx.withdraw_reply();
                None
            }
            Flow::Abort(failure) => {
                self.unable.get_or_insert(failure);
                None
            }
            Flow::Continue | Flow::Suspend | Flow::AwaitBody | Flow::Reroute(_) => Some(flow),
        }
    }

    fn refuse(self, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(failure) = self.unable {
            return Flow::Abort(failure);
        }
        let challenges = self.challenges.split(|b| *b == b'\n').filter(|challenge| !challenge.is_empty());
        let reply = challenges.fold(cx.reply(401), |reply, one| reply.field("WWW-Authenticate", one));
        reply.message("Authorization Failed").done()
    }
}

impl Plugin for Trying {
    fn credential_arguments(&self) -> Vec<&[u8]> {
        self.ways.iter().flat_map(|way| way.credential_arguments()).collect()
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut failed = Failed::default();
        for way in &self.ways {
            let flow = way.rewrite(cx);
            if let Some(flow) = failed.take(cx, flow) {
                return flow;
            }
        }
        failed.refuse(cx)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            // Those before the one that waits refuse the request once more.
            let mut failed = Failed::default();
            for way in &self.ways {
                let flow = match way.rewrite(cx) {
                    Flow::Suspend => way.request_io(cx, io).await,
                    flow => flow,
                };
                if let Some(flow) = failed.take(cx, flow) {
                    return flow;
                }
            }
            failed.refuse(cx)
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        let limits = self.ways.iter().filter_map(|way| way.wait_limit());
        limits.reduce(Duration::saturating_add)
    }
}
