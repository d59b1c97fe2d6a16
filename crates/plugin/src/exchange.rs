//! One request and its response, with everything known about them. Pooled by a worker, so that a request allocates
//! nothing.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use weir_expr::Value;
use weir_router::{Match, Params};
use weir_telemetry::metrics::Label;
use weir_wire::fields::Fields;

use crate::buffers::Held;
use crate::captures::Captures;
use crate::consumer::ConsumerMatch;
use crate::moment::Moment;
use crate::per_request::values::States;
use crate::request::Request;
use crate::response::Response;
use crate::tables::{RouteInfo, Tables};

/// First capacity of a read buffer, in bytes.
const FIRST: usize = 4 << 10;
/// Bytes to which a buffer may grow for anybody, and which are kept of it between requests. Beyond that, up to the limits, it is
/// a part of the budget for buffers.
pub const BUFFER: usize = 16 << 10;

/// One exchange.
#[derive(Debug)]
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// The response.
    pub response: Response,
    /// Response fields set before there is a response; they replace those of the same name.
    pub early_fields: Fields,
    /// The client and the connection.
    pub client: Client,
    /// The name that the client asked for by TLS (SNI); empty without one, and for a stream.
    pub server_name: Vec<u8>,
    /// The configuration's names.
    pub tables: Option<Rc<Arc<Tables>>>,
    /// The matched route.
    pub matched: Option<Match>,
    /// Number of times that the request was led to another route.
    pub reroutes: u32,
    /// Path parameters of the match.
    pub params: Params,
    /// The caller.
    pub consumer: Option<ConsumerMatch>,
    /// Dense id of the plan whose limits hold.
    pub plan: Option<u32>,
    /// The upstream side.
    pub upstream: UpstreamInfo,
    /// Times of the exchange's phases.
    pub times: Times,
    /// True if somebody looks at the times; else the clock is read once a request.
    pub timed: bool,
    /// Most bytes that the request body may have, framing not counted; `u64::MAX`: any number.
    pub body_limit: u64,
    /// Bytes received from the client for this request so far.
    pub received: u64,
    /// Bytes sent to the client for this response so far.
    pub sent: u64,
    /// Bytes of the head among `sent`.
    pub sent_head: u64,
    /// Room for bytes about to be written: a head, or re-framed body bytes.
    pub out: Vec<u8>,
    /// Room for a plugin to build a value in.
    pub scratch: Vec<u8>,
    /// The part of the budget that its buffers have.
    pub held: Held,
    /// Data of a stream; `None` for a request.
    pub stream: Option<Box<StreamInfo>>,
    pub(crate) states: States,
    /// Answers given to [`Exchange::once`], by key.
    pub(crate) told: Vec<(usize, bool)>,
    /// The id that a plugin gave the request; empty: `request_id`.
    pub(crate) own_id: Vec<u8>,
    /// The `traceparent` that a plugin tells in variables; empty: none does.
    pub(crate) traceparent: Vec<u8>,
    /// Groups of the regular expression that took the path, where the route keeps them.
    pub(crate) captures: Option<Captures>,
    pub(crate) request_id: OnceCell<[u8; 32]>,
    pub(crate) moment: OnceCell<Moment>,
}

/// A stream of a stream route, of which there is no request.
#[derive(Debug, Default)]
pub struct StreamInfo {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// The name that the client asked for by TLS.
    pub sni: Option<Box<str>>,
    /// Bytes that the client has sent so far, if a plugin has asked for them; they go to the node first.
    pub first: Vec<u8>,
    /// The client's id in MQTT, which may be empty.
    pub mqtt_client_id: Option<Box<[u8]>>,
}

/// The text of an address, made once a connection.
#[derive(Debug, Clone, Copy)]
pub struct AddrText {
    /// The longest one is an IPv6 address with an embedded IPv4 one.
    bytes: [u8; 46],
    len: u8,
}

impl AddrText {
    /// Text for the address of a client on a Unix socket, as in nginx.
    pub const UNIX: Self = {
        let mut bytes = [0; 46];
        (bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]) = (b'u', b'n', b'i', b'x', b':');
        Self { bytes, len: 5 }
    };

    /// The text of this address.
    #[must_use]
    pub fn new(addr: IpAddr) -> Self {
        use std::io::Write;
        let mut bytes = [0; 46];
        let mut room = &mut bytes[..];
        // An address always fits.
        let _ = write!(room, "{addr}");
        let len = 46 - room.len() as u8;
        Self { bytes, len }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl std::fmt::Display for AddrText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::str::from_utf8(self.as_bytes()).unwrap_or_default())
    }
}

/// The client and its connection.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// Its address, after trusted proxies were taken into account. On a Unix socket it is 0.0.0.0, which no client of
    /// another kind can have and which only a range that names it, or all of IPv4, contains.
    pub addr: IpAddr,
    /// The same as text; `unix:` on a Unix socket.
    pub addr_text: AddrText,
    /// Its port; 0 on a Unix socket.
    pub port: u16,
    /// The address of the peer itself.
    pub peer: IpAddr,
    /// Whose the connection is: the address in its PROXY header, else the peer's. Whether a request's fields about the
    /// client are believed depends on it, for it is who has sent them.
    pub sender: IpAddr,
    /// Address at which it was accepted; 0.0.0.0:0 on a Unix socket.
    pub local: SocketAddr,
    /// `http` or `https`.
    pub https: bool,
    /// Serial number of the connection in this process.
    pub connection: u64,
    /// Number of requests on the connection, this one included.
    pub requests: u64,
    /// True where a plugin makes the requests of one of this client's ([`Io::connect`](crate::Io::connect)).
    pub inner: bool,
}

impl Client {
    /// A client on a Unix socket.
    #[must_use]
    pub fn unix(connection: u64) -> Self {
        Self { addr_text: AddrText::UNIX, connection, ..Self::default() }
    }

    /// True if it was accepted on a Unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        self.local.port() == 0
    }
}

impl Default for Client {
    fn default() -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            addr: nowhere,
            addr_text: AddrText::new(nowhere),
            port: 0,
            peer: nowhere,
            sender: nowhere,
            local: SocketAddr::new(nowhere, 0),
            https: false,
            connection: 0,
            requests: 0,
            inner: false,
        }
    }
}

/// Points in time, in microseconds of the worker's clock, which never goes back.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// The first byte of the request.
    pub start: u64,
    /// Now, renewed between phases that wait.
    pub now: u64,
    /// The first try at an upstream began; 0: none did.
    pub upstream_start: u64,
    /// The upstream's response had ended.
    pub upstream_end: u64,
    /// Milliseconds since 1970 at `start`.
    pub unix_ms: u64,
}

/// Tries at nodes of the upstream.
#[derive(Debug, Default)]
pub struct UpstreamInfo {
    /// The number of the upstream that a plugin has chosen; `None`: the route's own.
    pub chosen: Option<u32>,
    /// The number of the upstream that is to have a copy of the request.
    pub mirror: Option<u32>,
    /// The target of the copy.
    pub mirror_target: Vec<u8>,
    /// Every try, in order.
    pub tries: Vec<Try>,
    /// Positions of the nodes that were tried.
    pub tried: Vec<u16>,
    /// Metric label of the last node's address.
    pub node: Option<Label>,
    /// Texts of `upstream_addr`, `upstream_status` and `upstream_response_time`, made before the log phase.
    pub(crate) addr_text: Vec<u8>,
    pub(crate) status_text: Vec<u8>,
    pub(crate) time_text: Vec<u8>,
}

/// Address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAddress {
    /// Over TCP.
    Tcp(SocketAddr),
    /// At the absolute path of a Unix socket.
    Unix(Arc<str>),
}

impl std::fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// One try at a node. Times are microseconds after its begin; 0: not reached.
#[derive(Debug, Clone)]
pub struct Try {
    /// The node's address; `None` when its name has none.
    pub addr: Option<NodeAddress>,
    /// The status it answered, or that the gateway gave it for failing.
    pub status: u16,
    /// Time of the beginning, on the worker's clock.
    pub begin: u64,
    /// The connection stood.
    pub connected: u64,
    /// The response head had arrived.
    pub head: u64,
    /// The response had ended.
    pub end: u64,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            request: Request::new(FIRST),
            response: Response::new(FIRST),
            early_fields: Fields::default(),
            client: Client::default(),
            server_name: Vec::new(),
            tables: None,
            matched: None,
            reroutes: 0,
            params: Params::default(),
            consumer: None,
            plan: None,
            upstream: UpstreamInfo::default(),
            times: Times::default(),
            timed: false,
            body_limit: u64::MAX,
            received: 0,
            sent: 0,
            sent_head: 0,
            out: Vec::with_capacity(2 << 10),
            scratch: Vec::with_capacity(256),
            held: Held::default(),
            stream: None,
            states: States::default(),
            told: Vec::new(),
            own_id: Vec::new(),
            traceparent: Vec::new(),
            captures: None,
            request_id: OnceCell::new(),
            moment: OnceCell::new(),
        }
    }
}

impl Exchange {
    /// Forgets the last exchange; bytes in the request buffer stay (they may be the next request).
    pub fn reset(&mut self) {
        self.response.reset();
        self.request.forget_values();
        self.request.forget_changes();
        self.early_fields.clear();
        self.server_name.clear();
        self.tables = None;
        self.matched = None;
        self.reroutes = 0;
        self.consumer = None;
        self.plan = None;
        self.upstream.chosen = None;
        self.upstream.mirror = None;
        self.upstream.tries.clear();
        self.upstream.tried.clear();
        self.upstream.node = None;
        self.times = Times::default();
        self.received = 0;
        self.sent = 0;
        self.sent_head = 0;
        self.out.clear();
        self.states.clear();
        self.told.clear();
        self.own_id.clear();
        self.traceparent.clear();
        self.captures = None;
        self.request_id.take();
        self.moment.take();
    }

    /// The answer of `tell`, which is called once for each key: the first answer stays until the end.
    pub fn once(&mut self, key: usize, tell: impl FnOnce(&Self) -> bool) -> bool {
        if let Some((_, told)) = self.told.iter().find(|(known, _)| *known == key) {
            return *told;
        }
        let told = tell(self);
        self.told.push((key, told));
        told
    }

    /// Drops the state of plugins. An exchange that is dropped does the same.
    pub fn end(&mut self) {
        self.states.clear();
    }

    /// Makes room for a message of ordinary size; called when it is taken for a connection.
    pub fn make_room(&mut self) {
        self.request.buffer.clear();
        self.request.buffer.grow(FIRST);
        self.response.buffer.clear();
        self.response.buffer.grow(FIRST);
    }

    /// Takes part of the budget for what its buffers have beyond the ordinary, and are about to grow by. False when there
    /// is no room: then they must not grow.
    #[must_use]
    pub fn may_grow(&mut self, bytes: usize) -> bool {
        let large = self.large();
        self.held.grow_to(large + bytes)
    }

    /// Gives back what the budget was taken for and the buffers have not come to.
    pub fn settle(&mut self) {
        let large = self.large();
        self.held.shrink_to(large);
    }

    /// Bytes that its buffers have beyond the ordinary.
    fn large(&self) -> usize {
        let (request, response) = (self.request.buffer.capacity(), self.response.buffer.capacity());
        let bodies = [self.request.changed.capacity(), self.response.body.capacity()];
        let buffers = [request, response, self.out.capacity(), self.scratch.capacity()].into_iter().chain(bodies);
        buffers.map(|capacity| capacity.saturating_sub(BUFFER)).sum()
    }

    /// Gives memory back that an unusually large message took; called before it is pooled.
    #[inline]
    pub fn shrink(&mut self) {
        self.request.buffer.clear();
        self.request.buffer.shrink(BUFFER);
        self.request.head.fields.shrink(64, BUFFER);
        self.request.shrink(BUFFER);
        self.response.buffer.clear();
        self.response.buffer.shrink(BUFFER);
        self.response.head.fields.shrink(64, BUFFER);
        self.response.forget_encoder();
        self.states.clear();
        for room in
            [&mut self.out, &mut self.scratch, &mut self.own_id, &mut self.response.body, &mut self.response.trailers]
        {
            room.clear();
            // A call less for what is nearly always small.
            if room.capacity() > BUFFER {
                room.shrink_to(BUFFER);
            }
        }
        self.held.shrink_to(0);
    }

    /// The matched route's names.
    #[must_use]
    pub fn route(&self) -> Option<&RouteInfo> {
        self.tables.as_ref()?.routes.get(self.matched?.route).map(AsRef::as_ref)
    }

    /// The consumer, once an authentication plugin has found one.
    #[must_use]
    pub fn consumer(&self) -> Option<&crate::Consumer> {
        self.tables.as_ref()?.consumers.get(self.consumer?.consumer)
    }

    /// Microseconds spent on upstreams; `None` when none was asked.
    #[must_use]
    pub fn upstream_us(&self) -> Option<u64> {
        (self.times.upstream_start != 0)
            .then(|| self.times.upstream_end.max(self.times.upstream_start) - self.times.upstream_start)
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.client.https { "https" } else { "http" }
    }

    /// The Host of X-Forwarded-Host for the upstream: as received. Empty if there is none.
    #[must_use]
    pub fn forwarded_host(&self) -> &[u8] {
        let request = &self.request;
        request.head.host.map_or(request.host_port(), |host| host.of(request.buffer.bytes()))
    }

    /// The port of X-Forwarded-Port for the upstream: the Host's, else the listener's. A Unix socket has none:
    /// that of the scheme.
    #[must_use]
    pub fn forwarded_port(&self) -> Value<'_> {
        match (self.request.port(), self.client.local.port(), self.client.https) {
            (Some(port), ..) => Value::Bytes(port),
            (None, 0, false) => Value::Number(80),
            (None, 0, true) => Value::Number(443),
            (None, port, _) => Value::Number(u64::from(port)),
        }
    }

    /// Makes the texts that the log phase reads.
    pub fn prepare_log(&mut self) {
        let info = &mut self.upstream;
        info.addr_text.clear();
        info.status_text.clear();
        info.time_text.clear();
        for (i, attempt) in info.tries.iter().enumerate() {
            if i > 0 {
                for text in [&mut info.addr_text, &mut info.status_text, &mut info.time_text] {
                    text.extend_from_slice(b", ");
                }
            }
            match &attempt.addr {
                Some(NodeAddress::Tcp(addr)) => push_socket(&mut info.addr_text, *addr),
                Some(NodeAddress::Unix(path)) => {
                    info.addr_text.extend_from_slice(b"unix:");
                    info.addr_text.extend_from_slice(path.as_bytes());
                }
                None => info.addr_text.push(b'-'),
            }
            weir_wire::push_number(&mut info.status_text, u64::from(attempt.status));
            Value::Millis(attempt.end.div_ceil(1000)).write_to(&mut info.time_text);
        }
    }
}

/// Appends `address:port`.
fn push_socket(out: &mut Vec<u8>, addr: SocketAddr) {
    if addr.is_ipv6() {
        out.push(b'[');
    }
    Value::Ip(addr.ip()).write_to(out);
    if addr.is_ipv6() {
        out.push(b']');
    }
    out.push(b':');
    weir_wire::push_number(out, u64::from(addr.port()));
}
