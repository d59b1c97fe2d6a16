//! Random routes and requests, made from few names so that they match often.

use std::net::IpAddr;

use fastrand::Rng;
use serde_json::json;
use weir_expr::{Expr, Source, Value, Variable};
use weir_router::{MethodSet, Query, Route};

pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) host: &'static str,
    pub(crate) host_port: &'static str,
    pub(crate) path: String,
    pub(crate) remote: IpAddr,
    pub(crate) arg: &'static [u8],
}

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        matches!(variable, Variable::Arg(_)).then_some(Value::Bytes(self.arg))
    }
}

impl Request {
    pub(crate) fn query(&self) -> Query<'_> {
        Query {
            method: self.method.as_bytes(),
            host: self.host.as_bytes(),
            host_port: self.host_port.as_bytes(),
            path: self.path.as_bytes(),
            remote: self.remote,
            source: self,
        }
    }
}

/// Longer than a key that a hash table stores in its entry.
const LONG: &str = "a-name-that-nobody-would-type-and-every-generator-makes";

pub(crate) fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn random_path(rng: &mut Rng) -> String {
    let names = [":x", ":y", ":z"];
    let mut path = String::new();
    let length = rng.usize(1..6);
    for place in 0..length {
        path.push('/');
        let literal = pick(rng, &["a", "b", "ab", "a:b", "a*b", "", "%", LONG]);
        match rng.u8(..10) {
            // A name may occur only once in a regular expression.
            0..3 if !path.contains(names[place % 3]) => path.push_str(names[place % 3]),
            3 => path.push('*'),
            4 if !path.contains("*r") => path.push_str("*r"),
            5 if place + 1 == length => path.push_str(&format!("{literal}*").replace("**", "*")),
            _ => path.push_str(literal),
        }
    }
    if rng.u8(..40) == 0 { "*".to_owned() } else { path }
}

pub(crate) fn random_route(rng: &mut Rng) -> Route {
    let paths = (0..rng.usize(1..3)).map(|_| random_path(rng)).collect();
    let hosts = ["a.t", "b.a.t", "*.t", "*.a.t", "*", "*t", "a.t:81", "*.t:81", "*:81"];
    let methods = ["GET", "POST", "PURGE"];
    let networks = ["10.0.0.0/8", "10.1.0.0/16", "::/0", "::ffff:10.1.2.0/120"];
    let vars = [json!([["arg_v", "1"]]), json!([["uri_param_x", "a"]])];
    let some = |rng: &mut Rng| rng.u8(..3) == 0;
    Route {
        paths,
        hosts: if some(rng) { (0..rng.usize(1..4)).map(|_| pick(rng, &hosts).to_owned()).collect() } else { vec![] },
        methods: if some(rng) {
            (0..2).filter_map(|_| MethodSet::named(pick(rng, &methods))).collect()
        } else {
            MethodSet::ANY
        },
        remote_addrs: if rng.u8(..6) == 0 { vec![pick(rng, &networks).parse().unwrap()] } else { vec![] },
        vars: (rng.u8(..6) == 0).then(|| Expr::parse(&vars[rng.usize(..2)]).unwrap()),
        priority: rng.i64(-1..3),
        ranks: vec![],
        order: rng.u64(..3),
    }
}

pub(crate) fn random_request(rng: &mut Rng, routes: &[Route]) -> Request {
    let (host, host_port) = pick(
        rng,
        &[
            ("a.t", "a.t"),
            ("a.t", "a.t:81"),
            ("b.a.t", "b.a.t"),
            ("b.a.t", "b.a.t:81"),
            ("c.b.t", "c.b.t"),
            ("o", "o:81"),
            ("", ""),
        ],
    );
    let mut path = String::new();
    if rng.bool() && !routes.is_empty() {
        // A path that some route takes, or almost takes.
        let route = &routes[rng.usize(..routes.len())];
        for segment in route.paths[0].split('/').skip(1) {
            path.push('/');
            path.push_str(if segment.starts_with([':', '*']) { pick(rng, &["a", "b", "a/b", ""]) } else { segment });
        }
    } else {
        (0..rng.usize(1..7)).for_each(|_| {
            path.push('/');
            path.push_str(pick(rng, &["a", "b", "ab", "c", "", "a*b", ":x", LONG]));
        });
    }
    let remote = pick(rng, &["10.1.2.3", "10.9.9.9", "::ffff:10.1.2.3", "192.168.0.1", "2001:db8::1"]).parse().unwrap();
    Request {
        method: pick(rng, &["GET", "POST", "PURGE", "BREW"]),
        host,
        host_port,
        path,
        remote,
        arg: pick(rng, &[b"0", b"1"]),
    }
}
