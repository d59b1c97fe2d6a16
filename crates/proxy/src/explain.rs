//! Explanation of how a request would be handled: for people, and off the path of requests.

use std::net::IpAddr;
use std::sync::Arc;

use weir_config::{Checks, NodeHost, Settings};
use weir_plugin::host::Exchange;
use weir_plugin::{AddrText, Client};
use weir_router::{Outcome, Query};
use weir_wire::Reject;

use crate::chain::{Chain, Step};
use crate::compile::unresolved;
use crate::options::Options;
use crate::phases;
use crate::readings;
use crate::snapshot::{Route, Snapshot};
use crate::upstream::{Node, PassHost};

/// A request to be explained.
#[derive(Debug, Clone)]
pub struct ExplainRequest {
    /// True for a request over TLS.
    pub https: bool,
    /// The method.
    pub method: String,
    /// The Host.
    pub host: String,
    /// The target: path and query.
    pub target: String,
    /// Further fields.
    pub headers: Vec<(String, String)>,
    /// The client's address.
    pub remote: IpAddr,
}

/// The way a request would take.
#[derive(Debug)]
pub struct Explanation {
    /// The path that routes are matched against.
    pub path: String,
    /// The request target that the upstream would receive if no plugin changed it.
    pub upstream_target: String,
    /// Every route whose path takes the request's, in the order in which they are tried.
    pub candidates: Vec<Candidate>,
    /// Another reading of the path, for which the request is refused.
    pub ambiguity: Option<Ambiguity>,
    /// Plugins of the global rules, and then of the route, in the order of their priority.
    pub plugins: Vec<PlannedPlugin>,
    /// The upstream and its nodes; `None`: nowhere, or a plugin answers.
    pub upstream: Option<PlannedUpstream>,
    /// A plugin's choice, which takes precedence over `upstream`.
    pub choice: Option<PlannedChoice>,
}

/// A plugin that sends shares of requests such as this one to different upstreams.
#[derive(Debug)]
pub struct PlannedChoice {
    /// Name of the plugin.
    pub plugin: String,
    /// Weights, and where their share of the requests goes; `None`: nowhere.
    pub shares: Vec<(u32, Option<PlannedUpstream>)>,
}

/// Another reading of a path, which leads elsewhere.
#[derive(Debug)]
pub struct Ambiguity {
    /// The path in that reading; empty when such a server would refuse it.
    pub path: String,
    /// The id of the route that takes it.
    pub route: Option<String>,
}

/// A route that was looked at.
#[derive(Debug)]
pub struct Candidate {
    /// Id of the route.
    pub id: String,
    /// Name of the route, if any.
    pub name: Option<String>,
    /// The path pattern that took the path.
    pub pattern: String,
    /// True for the route that takes the request.
    pub chosen: bool,
    /// Reason why the route takes the request, or does not.
    pub reason: String,
}

/// A plugin that would run.
#[derive(Debug)]
pub struct PlannedPlugin {
    /// Name of the plugin.
    pub name: String,
    /// True if a global rule brings the plugin.
    pub global: bool,
    /// Priority of the plugin here.
    pub priority: i64,
    /// The phases it runs in.
    pub phases: Vec<&'static str>,
    /// True if `_meta.filter` decides for each request.
    pub filtered: bool,
    /// True if a reference in the configuration has no value, so that the request is answered 503.
    pub unresolved: bool,
}

/// The upstream that a request would go to.
#[derive(Debug)]
pub struct PlannedUpstream {
    /// `host:port` of each node, with its weight and priority where they differ.
    pub nodes: Vec<String>,
    /// Balancer's name in a configuration; `None` with at most one node to choose.
    pub balancer: Option<&'static str>,
    /// The node that is chosen while it is available, where the request decides that.
    pub node: Option<String>,
    /// The Host that nodes see.
    pub host: String,
    /// Further tries after the first.
    pub retries: u32,
    /// Connect, send and read timeout in milliseconds.
    pub timeouts_ms: (u64, u64, u64),
    /// Health checks of the nodes, if any.
    pub checks: Option<Arc<Checks>>,
}

impl Snapshot {
    /// Explains a request.
    ///
    /// # Errors
    /// The request would be refused before any route is looked for.
    pub fn explain(&self, request: &ExplainRequest, settings: &Settings) -> Result<Explanation, Reject> {
        let options = Options::new(settings);
        let mut x = Exchange::default();
        let mut text = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.target, request.host);
        for (name, value) in &request.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        x.request.buffer.extend(text.as_bytes());
        if x.request.parse(&options.head)?.is_none() {
            return Err(Reject::bad("incomplete request"));
        }
        x.request.accept_head(options.paths)?;
        if !request.https {
            self.tls.admit_without_tls(x.request.host(), x.request.path())?;
        }
        x.client = Client {
            addr: request.remote.to_canonical(),
            addr_text: AddrText::new(request.remote),
            peer: request.remote,
            sender: request.remote.to_canonical(),
            https: request.https,
            ..Client::default()
        };
        options.distrust(&mut x);
        let other_way = if x.request.has_other_readings() && !options.ambiguous_paths {
            readings::other_way(&mut x, self, options.paths, |_| true)
        } else {
            None
        };
        // A condition that cannot be decided is met by nothing here.
        let _ = phases::find_route(&mut x, self);
        let mut upstream_target = Vec::new();
        x.request.write_upstream_target(&mut upstream_target);
        let route = x.matched.and_then(|m| self.routes.get(m.route));
        let mut plugins = self.plan(&self.global, true);
        plugins.extend(route.map(|r| self.plan(&r.chain, false)).unwrap_or_default());
        let choice = route.and_then(|route| self.choice(route, &x, &request.host));
        Ok(Explanation {
            path: String::from_utf8_lossy(x.request.path()).into(),
            upstream_target: String::from_utf8_lossy(&upstream_target).into(),
            candidates: self.candidates(&x),
            ambiguity: other_way.map(|other| Ambiguity {
                path: String::from_utf8_lossy(&other.path).into(),
                route: other.route.and_then(|route| Some(self.tables.routes.get(route)?.id.text.to_string())),
            }),
            plugins,
            upstream: route.and_then(|route| self.planned(route, route.upstream?, &x, &request.host)),
            choice,
        })
    }

    /// The choice of the last plugin that would choose among upstreams.
    fn choice(&self, route: &Route, x: &Exchange, host: &str) -> Option<PlannedChoice> {
        let steps = self.global.steps().iter().chain(route.chain.steps());
        let mut choosing = steps
            .filter(|step| step.filter().is_none_or(|filter| filter.eval(x)))
            .map(|step| (step, step.plugin.shares(x)));
        let (step, shares) = choosing.rfind(|(_, shares)| !shares.is_empty())?;
        let shares = shares.iter().filter(|share| share.weight > 0).map(|share| {
            let number = share.upstream.or(route.upstream);
            (share.weight, number.and_then(|number| self.planned(route, number, x, host)))
        });
        Some(PlannedChoice { plugin: self.plugin_name(step).to_owned(), shares: shares.collect() })
    }

    fn planned(&self, route: &Route, number: u32, x: &Exchange, host: &str) -> Option<PlannedUpstream> {
        let upstream = self.upstreams.get(number)?;
        let decided = upstream.decided(x).and_then(|at| upstream.nodes.get(usize::from(at)));
        let times = route.timeouts(upstream);
        Some(PlannedUpstream {
            nodes: node_names(&upstream.nodes),
            balancer: upstream.balancer.name(),
            node: decided.map(|n| node_name(&n.endpoint.host, n.endpoint.port)),
            host: match &upstream.host {
                PassHost::Pass => format!("{host} (the client's)"),
                PassHost::Node => "the node's".to_owned(),
                PassHost::Rewrite(host) => String::from_utf8_lossy(host).into(),
            },
            retries: upstream.retries,
            timeouts_ms: (times.connect, times.send, times.read),
            checks: upstream.checked.as_ref().map(|checked| Arc::clone(&checked.checks)),
        })
    }

    fn plugin_name(&self, step: &Step) -> &'static str {
        self.definitions.0.get(usize::from(step.kind)).map_or("left out: 503", |d| d.name())
    }

    fn candidates(&self, x: &Exchange) -> Vec<Candidate> {
        let Some(router) = &self.tables.router else { return Vec::new() };
        let steps = router.explain(&Query {
            method: x.request.method_bytes(),
            host: x.request.host(),
            host_port: x.request.host_port(),
            path: x.request.path(),
            remote: x.client.addr,
            source: x,
        });
        let text = |n: &weir_plugin::Named| n.text.to_string();
        steps
            .into_iter()
            .filter_map(|step| {
                let info = self.tables.routes.get(step.route)?;
                Some(Candidate {
                    id: text(&info.id),
                    name: info.name.as_ref().map(text),
                    pattern: info.paths.get(usize::from(step.path)).map(text).unwrap_or_default(),
                    chosen: step.outcome == Outcome::Chosen,
                    reason: match step.outcome {
                        Outcome::Chosen => "chosen".into(),
                        Outcome::NotTried => "not tried: another route was found before".into(),
                        Outcome::Method => "method is not among its methods".into(),
                        Outcome::Host => "host is none of its hosts".into(),
                        Outcome::RemoteAddr => "client address is in none of its ranges".into(),
                        Outcome::Vars(at) => format!("vars{at} does not hold"),
                    },
                })
            })
            .collect()
    }

    fn plan(&self, chain: &Chain, global: bool) -> Vec<PlannedPlugin> {
        chain
            .steps()
            .iter()
            .map(|step| PlannedPlugin {
                name: self.plugin_name(step).to_owned(),
                global,
                priority: step.priority,
                phases: step.phases.names(),
                filtered: step.filter().is_some(),
                unresolved: unresolved::stands_in(step),
            })
            .collect()
    }
}

fn node_names(nodes: &[Node]) -> Vec<String> {
    let differs = |of: fn(&Node) -> i64| nodes.windows(2).any(|pair| pair.iter().map(of).is_sorted_by(|a, b| a != b));
    let (weights, priorities) = (differs(|n| n.weight.into()), differs(|n| n.priority));
    let name = |node: &Node| {
        let mut name = node_name(&node.endpoint.host, node.endpoint.port);
        if weights {
            name.push_str(&format!(" weight {}", node.weight));
        }
        if priorities {
            name.push_str(&format!(" priority {}", node.priority));
        }
        name
    };
    nodes.iter().map(name).collect()
}

fn node_name(host: &NodeHost, port: u16) -> String {
    match host {
        NodeHost::Ip(ip) => std::net::SocketAddr::new(*ip, port).to_string(),
        NodeHost::Name(name) if NodeHost::is_service_name(name) => name.clone(),
        NodeHost::Name(name) => format!("{name}:{port}"),
        NodeHost::Unix(_) => host.to_string(),
    }
}
