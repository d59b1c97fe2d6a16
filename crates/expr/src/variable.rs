use std::borrow::Cow;
use std::fmt;

use crate::body_path::BodyPath;
use crate::body_reading;

/// Declares the variables that are a plain name: the enum, the table of names and the way back.
macro_rules! variables {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $(| $alias:literal)*,)+) => {
        /// A property of a request, its connection or its response that a configuration can read.
        ///
        /// Names are compiled once with [`Variable::parse`]; a [`Source`](crate::Source) then returns values by
        /// variant.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Variable {
            $($(#[doc = $doc])+ $variant,)+
            /// `http_<name>`: a request header field. The name is stored in lower case with `-` for every `_`, and is
            /// compared case-insensitively. A field received with `_` in its name is a different field: if both were
            /// the same, a client could smuggle a value past the proxy that sets the field with `-`.
            Header(Box<str>),
            /// `arg_<name>`: the first query argument of that name; name and value are decoded. Case is kept.
            Arg(Box<[u8]>),
            /// `cookie_<name>`: a cookie of the request. Case is kept.
            Cookie(Box<str>),
            /// `uri_param_<name>`: a parameter of the matched path (`/users/:name`).
            UriParam(Box<str>),
            /// `post_arg_<name>`: the first field of that name in a form (`application/x-www-form-urlencoded`); name and
            /// value are decoded. Case is kept.
            PostArg(Box<[u8]>),
            /// `post_arg.<path>`: what stands at a path in a body of JSON, or a field of a form.
            PostField(BodyPath),
            /// `sent_http_<name>`: a field of the response to the client; name as in [`Variable::Header`].
            SentHeader(Box<str>),
            /// `upstream_http_<name>`: a field of the upstream's response; name as in [`Variable::Header`].
            UpstreamHeader(Box<str>),
            /// `upstream_trailer_<name>`: a field of the trailer section of the upstream's response; name as in
            /// [`Variable::Header`].
            UpstreamTrailer(Box<str>),
        }

        /// All plain names with their variables; an alias follows its main name.
        const PLAIN: &[(&str, Variable)] = &[
            $(($name, Variable::$variant), $(($alias, Variable::$variant),)*)+
        ];

        impl Variable {
            fn plain_name(&self) -> Option<&'static str> {
                match self {
                    $(Variable::$variant => Some($name),)+
                    _ => None,
                }
            }
        }
    };
}

variables! {
    /// Address of the client, after trusted proxies were taken into account.
    RemoteAddr = "remote_addr",
    /// Port of the client.
    RemotePort = "remote_port",
    /// Address at which the request was accepted.
    ServerAddr = "server_addr",
    /// Port at which the request was accepted.
    ServerPort = "server_port",
    /// Name of the server that accepted the request.
    ServerName = "server_name",
    /// Host of the request in lower case and without port.
    Host = "host",
    /// Name of the machine.
    Hostname = "hostname",
    /// The Host field as received, with its port.
    HttpHost = "http_host",
    /// Path of the request after normalisation, without the query.
    Uri = "uri" | "document_uri",
    /// Path of the request after normalisation, with the query as received. In the access log it is `real_request_uri`,
    /// as with nginx.
    RequestUri = "request_uri",
    /// Path and query of the request as received.
    RealRequestUri = "real_request_uri",
    /// Query of the request, without `?`.
    Args = "args" | "query_string",
    /// `?` when the request has a query, else empty.
    IsArgs = "is_args",
    /// Method of the request.
    RequestMethod = "request_method" | "method",
    /// `http` or `https`.
    Scheme = "scheme",
    /// Name that the client asked for by TLS (SNI).
    SslServerName = "ssl_server_name",
    /// `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0` or `HTTP/3.0`.
    ServerProtocol = "server_protocol",
    /// `TCP` or `UDP`.
    Protocol = "protocol",
    /// Name that the client of a stream has asked for by TLS.
    StreamServerName = "ssl_preread_server_name",
    /// Id that the client of a stream has told by MQTT.
    MqttClientId = "mqtt_client_id",
    /// Content-Type of the request.
    ContentType = "content_type",
    /// Content-Length of the request.
    ContentLength = "content_length",
    /// Name of the consumer that an authentication plugin has found.
    ConsumerName = "consumer_name",
    /// Id of that consumer's group.
    ConsumerGroupId = "consumer_group_id",
    /// Id of the matched route.
    RouteId = "route_id",
    /// Name of the matched route.
    RouteName = "route_name",
    /// Id of the route's service.
    ServiceId = "service_id",
    /// Name of the route's service.
    ServiceName = "service_name",
    /// The path pattern of the route that matched.
    MatchedUri = "matched_uri",
    /// The host pattern of the route that matched.
    MatchedHost = "matched_host",
    /// Address of the chosen upstream node.
    BalancerIp = "balancer_ip",
    /// Port of the chosen upstream node.
    BalancerPort = "balancer_port",
    /// Address and port of every upstream node that was tried.
    UpstreamAddr = "upstream_addr",
    /// Status of every upstream response.
    UpstreamStatus = "upstream_status",
    /// Time until the upstream's response had ended.
    UpstreamResponseTime = "upstream_response_time",
    /// Time until the connection to the upstream stood.
    UpstreamConnectTime = "upstream_connect_time",
    /// Time until the head of the upstream's response had arrived.
    UpstreamHeaderTime = "upstream_header_time",
    /// Time since the first byte of the request, or since a stream began.
    RequestTime = "request_time" | "session_time",
    /// Bytes of the request, head and body; of a stream all that its client has sent.
    RequestLength = "request_length" | "bytes_received",
    /// Bytes sent to the client: head and body.
    BytesSent = "bytes_sent",
    /// Bytes of the response body sent to the client.
    BodyBytesSent = "body_bytes_sent",
    /// Status of the response.
    Status = "status",
    /// Status of a gRPC call as a number, from the trailer section or the head of the answer.
    GrpcStatus = "grpc_status",
    /// Local time as in ISO 8601.
    TimeIso8601 = "time_iso8601",
    /// Local time in the Common Log Format.
    TimeLocal = "time_local",
    /// Seconds since the epoch with milliseconds.
    Msec = "msec",
    /// Unique id of the request.
    RequestId = "request_id" | "apisix_request_id",
    /// Serial number of the connection.
    Connection = "connection",
    /// Number of requests made so far through the connection.
    ConnectionRequests = "connection_requests",
    /// Process id of the gateway.
    Pid = "pid",
    /// Time spent waiting for the upstream, in seconds: APISIX's own reckoning, all tries together.
    ApisixUpstreamResponseTime = "apisix_upstream_response_time",
    /// Time spent in the gateway itself.
    GatewayLatency = "gateway_latency",
    /// Kind of the GraphQL operation that is asked for: `query`, `mutation` or `subscription`.
    GraphqlOperation = "graphql_operation",
    /// Name of that operation; empty where it has none.
    GraphqlName = "graphql_name",
    /// The field `traceparent` that the plugin opentelemetry sends to the upstream.
    OpentelemetryContextTraceparent = "opentelemetry_context_traceparent",
    /// Id of the trace in it.
    OpentelemetryTraceId = "opentelemetry_trace_id",
    /// Id of the span in it.
    OpentelemetrySpanId = "opentelemetry_span_id",
    /// Fields at the top of that operation, as a list.
    GraphqlRootFields = "graphql_root_fields",
}

type Member = fn(&str) -> Variable;

/// Families of variables with a member in the name.
const FAMILIES: &[(&str, Member)] = &[
    ("arg_", |name| Variable::Arg(name.as_bytes().into())),
    ("http_", |name| Variable::Header(field_name(name))),
    ("cookie_", |name| Variable::Cookie(name.into())),
    ("uri_param_", |name| Variable::UriParam(name.into())),
    ("post_arg_", |name| Variable::PostArg(name.as_bytes().into())),
    ("sent_http_", |name| Variable::SentHeader(field_name(name))),
    ("upstream_http_", |name| Variable::UpstreamHeader(field_name(name))),
    ("upstream_trailer_", |name| Variable::UpstreamTrailer(field_name(name))),
];

/// Names of nginx and APISIX that this gateway recognises but does not support.
const UNSUPPORTED: &[&str] = &[
    "binary_remote_addr",
    "body_bytes_received",
    "document_root",
    "gzip_ratio",
    "http2",
    "http3",
    "https",
    "limit_rate",
    "nginx_version",
    "pipe",
    "proxy_add_x_forwarded_for",
    "proxy_host",
    "proxy_port",
    "rate_limiting_info",
    "realpath_root",
    "remote_user",
    "request",
    "request_body",
    "request_body_file",
    "request_completion",
    "request_filename",
    "request_line",
    "request_llm_model",
    "request_type",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "upstream_host",
    "upstream_scheme",
    "upstream_unresolved_host",
    "upstream_uri",
];

/// Prefixes of families that are recognised but not supported.
const UNSUPPORTED_FAMILIES: &[&str] = &[
    "jwt_",
    "limit_conn_",
    "limit_req_",
    "llm_",
    "opentelemetry_",
    "proxy_protocol_",
    "realip_",
    "sent_trailer_",
    "ssl_",
    "tcpinfo_",
    "upstream_cookie_",
    "zipkin_",
];

impl Variable {
    /// Compiles a name without a leading `$`.
    pub fn parse(name: &str) -> Result<Variable, VariableError> {
        let variable = Variable::parse_name(name)?;
        if variable.reads_body() {
            body_reading::note();
        }
        Ok(variable)
    }

    /// True if the value of the variable is, or may be, in the body of the request.
    pub fn reads_body(&self) -> bool {
        matches!(
            self,
            Variable::PostArg(_)
                | Variable::PostField(_)
                | Variable::GraphqlOperation
                | Variable::GraphqlName
                | Variable::GraphqlRootFields
        )
    }

    fn parse_name(name: &str) -> Result<Variable, VariableError> {
        if let Some((_, variable)) = PLAIN.iter().find(|(plain, _)| *plain == name) {
            return Ok(variable.clone());
        }
        if let Some(path) = name.strip_prefix("post_arg.") {
            let error = |reason| VariableError::Path { name: name.to_owned(), reason };
            return BodyPath::parse(path).map(Variable::PostField).map_err(error);
        }
        for (prefix, member) in FAMILIES {
            match name.strip_prefix(prefix) {
                Some("") => return Err(VariableError::Incomplete { name: name.to_owned() }),
                Some(rest) if !may_name(prefix, rest) => return Err(VariableError::Never { name: name.to_owned() }),
                Some(rest) => return Ok(member(rest)),
                None => {}
            }
        }
        if UNSUPPORTED.contains(&name) || UNSUPPORTED_FAMILIES.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(VariableError::Unsupported { name: name.to_owned() });
        }
        Err(VariableError::Unknown { name: name.to_owned(), nearest: nearest_name(name) })
    }

    /// Name of the variable without `$`; for an alias, its main name.
    pub fn name(&self) -> Cow<'_, str> {
        let (prefix, member) = match self {
            Variable::Header(name) => ("http_", Cow::Owned(name.replace('-', "_"))),
            Variable::SentHeader(name) => ("sent_http_", Cow::Owned(name.replace('-', "_"))),
            Variable::UpstreamHeader(name) => ("upstream_http_", Cow::Owned(name.replace('-', "_"))),
            Variable::UpstreamTrailer(name) => ("upstream_trailer_", Cow::Owned(name.replace('-', "_"))),
            Variable::Arg(name) => ("arg_", String::from_utf8_lossy(name)),
            Variable::Cookie(name) => ("cookie_", Cow::Borrowed(&**name)),
            Variable::UriParam(name) => ("uri_param_", Cow::Borrowed(&**name)),
            Variable::PostArg(name) => ("post_arg_", String::from_utf8_lossy(name)),
            Variable::PostField(path) => ("post_arg.", Cow::Borrowed(path.text())),
            plain => return Cow::Borrowed(plain.plain_name().unwrap_or_default()),
        };
        Cow::Owned(format!("{prefix}{member}"))
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.name())
    }
}

/// Error for a name that is no variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// No such variable.
    #[error("unknown variable '{name}'{}", suggestion(nearest.as_deref()))]
    Unknown {
        /// Name as written.
        name: String,
        /// Most similar known name.
        nearest: Option<String>,
    },
    /// Supported by nginx or APISIX, but not by this gateway.
    #[error("variable '{name}' is not supported yet")]
    Unsupported {
        /// Name as written.
        name: String,
    },
    /// Prefix of a family, such as `http_`, without a name after it.
    #[error("variable '{name}' lacks the name after its prefix")]
    Incomplete {
        /// Name as written.
        name: String,
    },
    /// A path into a body that cannot be read.
    #[error("variable '{name}': {reason}")]
    Path {
        /// The name as written.
        name: String,
        /// Description of the error in the path.
        reason: &'static str,
    },
    /// The name of a field that hardly anybody sends: it has `header_` before the name of the field that is meant.
    #[error("${name} is the field Header-…; the field itself is ${meant}")]
    Doubtful {
        /// Name as written.
        name: String,
        /// Name of the intended field.
        meant: String,
    },
    /// A `$` in a replacement with neither a group nor a name after it.
    #[error("a $ stands before neither a group nor a variable; write $$ for the character")]
    Bare,
    /// Header field or cookie with a name that contains forbidden characters.
    #[error("variable '{name}' can never be set: no header field or cookie has such a name")]
    Never {
        /// Name as written.
        name: String,
    },
}

impl VariableError {
    /// True if nginx or APISIX has the variable, so that no value may replace it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, VariableError::Unsupported { .. })
    }

    /// True if the variable can be read but is probably a mistake.
    pub fn is_doubtful(&self) -> bool {
        matches!(self, VariableError::Doubtful { .. })
    }

    /// Returns the doubt about a name that is a variable: `http_header_authorization` for `http_authorization`.
    pub fn doubt(name: &str) -> Option<VariableError> {
        let name = name.to_ascii_lowercase();
        let meant = |prefix: &&str| Some(format!("{prefix}{}", name.strip_prefix(*prefix)?.strip_prefix("header_")?));
        let meant =
            ["http_", "sent_http_", "upstream_http_"].iter().find_map(meant).filter(|m| !m.ends_with("http_"))?;
        Some(VariableError::Doubtful { name, meant })
    }
}

/// True if a member of a family can have this name: names of fields and cookies are tokens (RFC 9110 section 5.1, RFC
/// 6265 section 4.1.1), while an argument's name may be any text.
fn may_name(prefix: &str, member: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte);
    matches!(prefix, "arg_" | "uri_param_" | "post_arg_") || member.bytes().all(token)
}

pub(crate) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default()
}

/// The candidate most similar to `name`, if any is similar.
pub(crate) fn nearest_of<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Nearest plain name, or the name with the nearest family's prefix (`htp_host2` for `http_host2`).
fn nearest_name(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    if let Some(plain) = nearest_of(&lower, PLAIN.iter().map(|(plain, _)| *plain)) {
        return Some(plain.to_owned());
    }
    let (family, member) = name.split_once('_')?;
    let prefix = nearest_of(&format!("{family}_"), FAMILIES.iter().map(|(prefix, _)| *prefix))?;
    (!member.is_empty()).then(|| format!("{prefix}{member}"))
}

fn field_name(name: &str) -> Box<str> {
    name.to_ascii_lowercase().replace('_', "-").into()
}
