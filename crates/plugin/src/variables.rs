//! The values of variables, read from an exchange.

use std::io::Write;
use std::sync::OnceLock;

use weir_expr::{Source, Value, Variable};
use weir_wire::name::Known;

use crate::exchange::{AddrText, Exchange, NodeAddress};
use crate::moment::Moment;
use crate::values::Part;

/// The name of the machine.
pub fn hostname() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| String::new(), |s| s.trim().to_owned())
    })
}

/// A port; nothing on a Unix socket, as in nginx.
fn port(port: u16) -> Option<Value<'static>> {
    Some(if port == 0 { Value::Bytes(b"") } else { Value::Number(u64::from(port)) })
}

fn text(text: &str) -> Option<Value<'_>> {
    Some(Value::Bytes(text.as_bytes()))
}

impl Source for Exchange {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        let request = &self.request;
        let base = request.buffer.bytes();
        let millis = |us: u64| Some(Value::Millis(us.div_ceil(1000)));
        let last_try = || self.upstream.tries.last();
        let not_empty = |b: &'_ [u8]| !b.is_empty();
        match variable {
            Variable::Header(name) => {
                let id = Known::classify(name.as_bytes());
                match request.head.fields.get_as(base, id, name.as_bytes()) {
                    Some(value) => Some(Value::Bytes(value)),
                    // The value that the upstream receives, unless a trusted peer has sent another.
                    None => match id {
                        Known::XForwardedProto => text(self.scheme()),
                        Known::XForwardedHost => Some(self.forwarded_host()).filter(|h| not_empty(h)).map(Value::Bytes),
                        Known::XForwardedPort => Some(self.forwarded_port()),
                        _ => None,
                    },
                }
            }
            Variable::Arg(name) => request.argument(name),
            Variable::PostArg(name) => request.post_argument(name),
            Variable::PostField(path) => request.post_field(path),
            Variable::GraphqlOperation => request.graphql(Part::Operation),
            Variable::GraphqlName => request.graphql(Part::Name),
            Variable::GraphqlRootFields => request.graphql(Part::RootFields),
            Variable::Cookie(name) => request.cookie(name.as_bytes()).map(Value::Bytes),
            Variable::UriParam(name) => {
                if let Some(captures) = &self.captures {
                    return captures.named(request.encoded_path(), name).map(Value::Bytes);
                }
                let router = self.tables.as_ref()?.router.as_ref()?;
                router.param(self.matched.as_ref()?, &self.params, request.path(), name).map(Value::Bytes)
            }
            Variable::SentHeader(name) => self
                .response
                .head
                .fields
                .get_str(self.response.buffer.bytes(), name.as_bytes())
                .or_else(|| self.early_fields.get_str(b"", name.as_bytes()))
                .map(Value::Bytes),
            Variable::UpstreamHeader(name) => {
                self.response.head.fields.received(self.response.buffer.bytes(), name.as_bytes()).map(Value::Bytes)
            }
            Variable::UpstreamTrailer(name) => self.response.trailer(name.as_bytes()).map(Value::Bytes),
            Variable::GrpcStatus => self.response.grpc_status().map(Value::Bytes),
            Variable::RemoteAddr => Some(Value::Bytes(self.client.addr_text.as_bytes())),
            Variable::RemotePort => port(self.client.port),
            Variable::ServerAddr => Some(match self.client.is_unix() {
                true => Value::Bytes(AddrText::UNIX.as_bytes()),
                false => Value::Ip(self.client.local.ip()),
            }),
            Variable::ServerPort => port(self.client.local.port()),
            // The gateway has no named servers; nginx, and so APISIX, calls that one `_`.
            Variable::ServerName => text("_"),
            Variable::Host => Some(request.host()).filter(|h| not_empty(h)).map(Value::Bytes),
            Variable::Hostname => text(hostname()),
            Variable::HttpHost => request.head.fields.get_known(base, Known::Host).map(Value::Bytes),
            Variable::Uri => Some(Value::Bytes(request.path())),
            Variable::RequestUri => Some(Value::Bytes(request.request_uri())),
            Variable::RealRequestUri => Some(Value::Bytes(request.real_request_uri())),
            Variable::Args => request.query().map(Value::Bytes),
            Variable::IsArgs => {
                Some(Value::Bytes(if request.query().is_some_and(|q| !q.is_empty()) { b"?" } else { b"" }))
            }
            Variable::RequestMethod => Some(Value::Bytes(request.method_bytes())),
            Variable::Scheme => text(self.scheme()),
            Variable::SslServerName => match &self.stream {
                Some(stream) => text(stream.sni.as_deref()?),
                None => Some(&self.server_name).filter(|name| !name.is_empty()).map(|name| Value::Bytes(name)),
            },
            Variable::StreamServerName => self.stream.as_ref()?.sni.as_deref().and_then(text),
            Variable::Protocol => text(self.stream.as_ref().map_or("TCP", |stream| stream.protocol)),
            Variable::MqttClientId => {
                let id = self.stream.as_ref()?.mqtt_client_id.as_deref()?;
                Some(id).filter(|id| !id.is_empty()).map(Value::Bytes)
            }
            Variable::ServerProtocol => text(request.head.version.name()),
            Variable::ContentType => request.head.fields.get_known(base, Known::ContentType).map(Value::Bytes),
            Variable::ContentLength => request.head.fields.get_known(base, Known::ContentLength).map(Value::Bytes),
            Variable::ConsumerName => text(&self.consumer()?.name.text),
            Variable::ConsumerGroupId => text(self.consumer()?.group_id.as_deref()?),
            Variable::RouteId => text(&self.route()?.id.text),
            Variable::RouteName => text(&self.route()?.name.as_ref()?.text),
            Variable::ServiceId => text(&self.route()?.service_id.as_ref()?.text),
            Variable::ServiceName => text(&self.route()?.service_name.as_ref()?.text),
            Variable::MatchedUri => text(&self.route()?.paths.get(usize::from(self.matched?.path))?.text),
            Variable::MatchedHost => text(&self.route()?.hosts.get(usize::from(self.matched?.host?))?.text),
            Variable::BalancerIp => Some(match last_try()?.addr.as_ref()? {
                NodeAddress::Tcp(addr) => Value::Ip(addr.ip()),
                NodeAddress::Unix(path) => Value::Bytes(path.as_bytes()),
            }),
            Variable::BalancerPort => match last_try()?.addr.as_ref()? {
                NodeAddress::Tcp(addr) => port(addr.port()),
                NodeAddress::Unix(_) => port(0),
            },
            Variable::UpstreamAddr => {
                Some(Value::Bytes(&self.upstream.addr_text)).filter(|_| !self.upstream.tries.is_empty())
            }
            Variable::UpstreamStatus => {
                Some(Value::Bytes(&self.upstream.status_text)).filter(|_| !self.upstream.tries.is_empty())
            }
            Variable::UpstreamResponseTime => {
                Some(Value::Bytes(&self.upstream.time_text)).filter(|_| !self.upstream.tries.is_empty())
            }
            Variable::UpstreamConnectTime => millis(last_try()?.connected),
            Variable::UpstreamHeaderTime => millis(last_try()?.head),
            Variable::ApisixUpstreamResponseTime => millis(self.upstream_us()?),
            Variable::RequestTime => millis(self.times.now.saturating_sub(self.times.start)),
            Variable::GatewayLatency => {
                let whole = self.times.now.saturating_sub(self.times.start);
                millis(whole.saturating_sub(self.upstream_us().unwrap_or(0)))
            }
            Variable::RequestLength => Some(Value::Number(self.received)),
            Variable::BytesSent => Some(Value::Number(self.sent)),
            Variable::BodyBytesSent => Some(Value::Number(self.sent.saturating_sub(self.sent_head))),
            Variable::Status => {
                Some(Value::Number(u64::from(self.response.status()))).filter(|_| self.response.status() != 0)
            }
            Variable::TimeIso8601 => {
                let moment = self.moment.get_or_init(|| Moment::at(self.times.unix_ms / 1000));
                Some(Value::Bytes(&moment.iso8601))
            }
            Variable::TimeLocal => {
                let moment = self.moment.get_or_init(|| Moment::at(self.times.unix_ms / 1000));
                Some(Value::Bytes(&moment.common))
            }
            Variable::Msec => Some(Value::Millis(self.times.unix_ms)),
            Variable::OpentelemetryContextTraceparent => self.trace_part(..),
            Variable::OpentelemetryTraceId => self.trace_part(3..35),
            Variable::OpentelemetrySpanId => self.trace_part(36..52),
            Variable::RequestId if not_empty(&self.own_id) => Some(Value::Bytes(&self.own_id)),
            Variable::RequestId => Some(Value::Bytes(self.request_id.get_or_init(random_id))),
            Variable::Connection => Some(Value::Number(self.client.connection)),
            Variable::ConnectionRequests => Some(Value::Number(self.client.requests)),
            Variable::Pid => Some(Value::Number(u64::from(std::process::id()))),
            // `Variable` may learn new names before this does; such a one is unset.
            _ => None,
        }
    }
}

impl Exchange {
    /// A part of the `traceparent`; unset where no plugin has told one.
    fn trace_part<R: std::slice::SliceIndex<[u8], Output = [u8]>>(&self, part: R) -> Option<Value<'_>> {
        self.traceparent.get(part).filter(|text| !text.is_empty()).map(Value::Bytes)
    }
}

/// 32 hexadecimal digits, as nginx's `$request_id`.
fn random_id() -> [u8; 32] {
    let mut id = [0; 32];
    // 32 digits always fit.
    let _ = write!(&mut id[..], "{:032x}", fastrand::u128(..));
    id
}
