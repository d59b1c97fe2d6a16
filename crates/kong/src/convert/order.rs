//! The order of routes: Kong's ranks by the rules of the other form, or by `priority` where those rules would choose otherwise.

use serde_json::{Map, Value, json};
use weir_config::{Lowered, Matching, ResourceKind};

use crate::lower::{NO_ROUTE, escaped};

/// The way in which the routes of a document keep their order.
pub(super) struct Order {
    /// Paths of all routes in the order in which Kong tries them: id of the route, number of the path. `None`: hosts and the
    /// length of paths give that order by themselves.
    explicit: Option<Vec<(String, usize)>>,
}

/// A route, or a part of one.
#[derive(Default)]
pub(super) struct Piece {
    uris: Vec<String>,
    hosts: Vec<String>,
    vars: Vec<Value>,
    priority: Option<usize>,
    pub(super) note: Option<String>,
}

/// A path of a route with what Kong's order follows from.
struct Candidate {
    id: String,
    at: usize,
    path: String,
    rank: u64,
    has_hosts: bool,
}

impl Order {
    pub(super) fn of(lowered: &Lowered) -> Self {
        let mut candidates = Vec::new();
        let mut is_plain = true;
        for (item, entity) in lowered.items(ResourceKind::Routes) {
            let id = item.get("id").and_then(weir_config::Node::as_str).unwrap_or_default();
            let Some(matching) = entity.and_then(|entity| entity.matching.as_ref()).filter(|_| id != NO_ROUTE) else {
                continue;
            };
            is_plain &= matching.hosts.iter().all(|host| !host.contains('*'));
            for (at, (path, rank)) in matching.paths.iter().zip(&matching.ranks).enumerate() {
                is_plain &= path.starts_with('/') && !path.contains(['*', ':']);
                candidates.push(Candidate {
                    id: id.to_owned(),
                    at,
                    path: path.clone(),
                    rank: *rank,
                    has_hosts: !matching.hosts.is_empty(),
                });
            }
        }
        // The sort is stable: of equal ranks the one that comes first stays first.
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.rank));
        if is_plain && follows_paths(&candidates) {
            return Self { explicit: None };
        }
        Self { explicit: Some(candidates.into_iter().map(|candidate| (candidate.id, candidate.at)).collect()) }
    }

    /// The parts of a route.
    pub(super) fn pieces(&self, id: &str, matching: Option<&Matching>) -> Vec<Piece> {
        let Some(matching) = matching else { return Vec::new() };
        let Some(order) = &self.explicit else {
            let uris = matching.paths.iter().map(|path| format!("{path}*")).collect();
            return vec![Piece { uris, hosts: matching.hosts.clone(), ..Piece::default() }];
        };
        let piece = |(at, path): (usize, &String)| {
            let place = order.iter().position(|(known, number)| known == id && *number == at);
            let mut vars = Vec::new();
            match path.strip_prefix('~') {
                Some(regex) => vars.push(json!(["uri", "~~", format!("^(?:{regex})")])),
                None if path == "/" => {}
                None => vars.push(json!(["uri", "~~", format!("^{}", escaped(path))])),
            }
            vars.extend(host_condition(&matching.hosts));
            let note = (at == 0).then(|| {
                "The order of Kong's router is kept by priority; paths and hosts are conditions, which are tried in turn."
                    .to_owned()
            });
            Piece {
                uris: vec!["/*".to_owned()],
                hosts: Vec::new(),
                vars,
                priority: place.map(|place| order.len() - place),
                note,
            }
        };
        matching.paths.iter().enumerate().map(piece).collect()
    }
}

/// True if the longest prefix, among those with hosts first, is what Kong would take.
fn follows_paths(candidates: &[Candidate]) -> bool {
    let mut by_path: Vec<(usize, &Candidate)> = candidates.iter().enumerate().collect();
    by_path.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
    // The paths that a path begins with lie before it, one within the other.
    let mut outer: Vec<(usize, &Candidate)> = Vec::new();
    for (place, candidate) in by_path {
        while outer.last().is_some_and(|(_, known)| !candidate.path.starts_with(&known.path)) {
            outer.pop();
        }
        let is_wrong = |(before, known): &(usize, &Candidate)| {
            known.has_hosts == candidate.has_hosts && known.path.len() < candidate.path.len() && *before < place
        };
        if outer.iter().any(is_wrong) {
            return false;
        }
        // More of one path than this are compared by their order in the file, which is Kong's.
        outer.push((place, candidate));
    }
    true
}

/// The condition on the host, in lower case.
fn host_condition(hosts: &[String]) -> Option<Value> {
    if hosts.is_empty() {
        return None;
    }
    let pattern = |host: &String| {
        let host = host.split_once(':').map_or(host.as_str(), |(name, _)| name).to_ascii_lowercase();
        match (host.strip_prefix('*'), host.strip_suffix('*')) {
            (Some(end), _) => format!(".+{}", escaped(end)),
            (None, Some(start)) => format!("{}.+", escaped(start)),
            (None, None) => escaped(&host),
        }
    };
    let all: Vec<String> = hosts.iter().map(pattern).collect();
    Some(json!(["host", "~~", format!("^(?:{})$", all.join("|"))]))
}

impl Piece {
    /// Puts the conditions into a route.
    pub(super) fn write(&self, route: &mut Map<String, Value>) {
        let uris = self.uris.clone();
        route.remove("uri");
        match uris.as_slice() {
            [one] => route.insert("uri".to_owned(), one.as_str().into()),
            _ => route.insert("uris".to_owned(), uris.into()),
        };
        if !self.hosts.is_empty() {
            route.insert("hosts".to_owned(), self.hosts.clone().into());
        }
        if !self.vars.is_empty() {
            let mut vars = self.vars.clone();
            vars.extend(route.get("vars").and_then(Value::as_array).cloned().unwrap_or_default());
            route.insert("vars".to_owned(), vars.into());
        }
        // Of routes with the same path Kong takes the one with methods first.
        let by_methods = usize::from(route.contains_key("methods"));
        let priority = self.priority.unwrap_or(by_methods);
        if priority > 0 {
            route.insert("priority".to_owned(), priority.into());
        }
    }
}
