//! Format of a line of the access log.

use weir_expr::{Source, Template, TemplateError, Value, Variable};

/// Format of a line.
#[derive(Debug, Clone)]
pub enum Format {
    /// One JSON object per line, with these fields in this order.
    ///
    /// A field with a single variable keeps its type: numbers and times (in seconds) are JSON numbers, an unset
    /// variable is `null`, everything else is a string. A field with several parts is a string. Bytes that are not
    /// UTF-8 become U+FFFD.
    Json {
        /// Names and values of the fields.
        fields: Vec<(String, Template)>,
    },
    /// Text with variables. As in nginx, an unset variable is `-`, and in values every `"`, `\`, control byte and
    /// byte beyond ASCII is written as `\xXX`, so that no client can forge a line or a field.
    Template(Template),
    /// Text with variables whose values are escaped as in a JSON string, as with nginx's `escape=json`; an unset
    /// variable is empty. The line is JSON if the text is.
    JsonTemplate(Template),
}

/// Fields of the format `json`.
const JSON_FIELDS: &[(&str, &str)] = &[
    ("time", "$time_iso8601"),
    ("request_id", "$request_id"),
    ("remote_addr", "$remote_addr"),
    ("method", "$request_method"),
    ("scheme", "$scheme"),
    ("host", "$host"),
    ("uri", "$request_uri"),
    ("protocol", "$server_protocol"),
    ("status", "$status"),
    ("grpc_status", "$grpc_status"),
    ("request_length", "$request_length"),
    ("bytes_sent", "$bytes_sent"),
    ("body_bytes_sent", "$body_bytes_sent"),
    ("request_time", "$request_time"),
    ("gateway_latency", "$gateway_latency"),
    ("upstream_latency", "$apisix_upstream_response_time"),
    ("upstream_addr", "$upstream_addr"),
    ("upstream_status", "$upstream_status"),
    ("upstream_connect_time", "$upstream_connect_time"),
    ("upstream_header_time", "$upstream_header_time"),
    ("upstream_response_time", "$upstream_response_time"),
    ("route_id", "$route_id"),
    ("service_id", "$service_id"),
    ("consumer_name", "$consumer_name"),
    ("user_agent", "$http_user_agent"),
    ("referer", "$http_referer"),
];

/// Fields of the format `json` of streams.
const STREAM_FIELDS: &[(&str, &str)] = &[
    ("time", "$time_iso8601"),
    ("remote_addr", "$remote_addr"),
    ("remote_port", "$remote_port"),
    ("server_addr", "$server_addr"),
    ("server_port", "$server_port"),
    ("sni", "$ssl_preread_server_name"),
    ("protocol", "$protocol"),
    ("status", "$status"),
    ("bytes_received", "$bytes_received"),
    ("bytes_sent", "$bytes_sent"),
    ("session_time", "$session_time"),
    ("upstream_addr", "$upstream_addr"),
    ("upstream_connect_time", "$upstream_connect_time"),
    ("route_id", "$route_id"),
    ("service_id", "$service_id"),
];

/// nginx's `combined`, with the consumer in place of the user name of nginx's basic authentication.
const COMBINED: &str = concat!(
    "$remote_addr - $consumer_name [$time_local] \"$request_method $request_uri $server_protocol\" ",
    "$status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"",
);

impl Format {
    /// Parses the setting: `json`, `combined`, or the text of a template. An unknown variable is written as `-`, or
    /// as nothing if values are `escaped` for JSON; the errors about such variables are returned as well.
    pub fn parse(setting: &str, escaped: bool) -> (Format, Vec<TemplateError>) {
        let setting = if setting == "combined" { COMBINED } else { setting };
        Self::with(JSON_FIELDS, setting, escaped)
    }

    /// Parses the setting of a log of streams: `json`, or the text of a template.
    pub fn parse_for_streams(setting: &str, escaped: bool) -> (Format, Vec<TemplateError>) {
        Self::with(STREAM_FIELDS, setting, escaped)
    }

    fn with(fields: &[(&str, &str)], setting: &str, escaped: bool) -> (Format, Vec<TemplateError>) {
        let known = |text: &str| Template::parse_log(text, "").0;
        match setting {
            "json" => {
                let field = |(name, text): &(&str, &str)| ((*name).to_owned(), known(text));
                (Format::Json { fields: fields.iter().map(field).collect() }, Vec::new())
            }
            text => {
                let (template, missing) = Template::parse_log(text, if escaped { "" } else { "-" });
                let format = if escaped { Format::JsonTemplate(template) } else { Format::Template(template) };
                (format, missing)
            }
        }
    }
}

/// A compiled [`Format`]: everything that does not depend on the request is rendered in advance.
#[derive(Debug)]
pub(super) enum Line {
    Json(Box<[Field]>),
    Text(Box<[Segment]>),
    JsonText(Box<[Segment]>),
}

#[derive(Debug)]
pub(super) struct Field {
    /// Name with the punctuation around it: `{"status":`.
    lead: Box<[u8]>,
    value: FieldValue,
}

#[derive(Debug)]
enum FieldValue {
    Variable(Variable),
    Text(Box<[Segment]>),
}

#[derive(Debug)]
pub(super) enum Segment {
    Literal(Box<[u8]>),
    Variable(Variable),
}

impl Line {
    pub(super) fn compile(format: &Format) -> Self {
        match format {
            Format::Template(template) => Line::Text(segments(template).collect()),
            Format::JsonTemplate(template) => Line::JsonText(segments(template).collect()),
            Format::Json { fields } => Line::Json(
                fields
                    .iter()
                    .enumerate()
                    .map(|(index, (name, template))| Field::compile(index, name, template))
                    .collect(),
            ),
        }
    }

    /// Appends one line with its line feed. Allocates only if `out` has to grow.
    pub(super) fn render(&self, source: &dyn Source, out: &mut Vec<u8>) {
        match self {
            Line::Text(segments) => {
                for segment in segments {
                    match segment {
                        Segment::Literal(text) => out.extend_from_slice(text),
                        Segment::Variable(variable) => write_text(source.variable(variable), out),
                    }
                }
            }
            Line::JsonText(segments) => write_segments(segments, source, out),
            Line::Json(fields) => {
                if fields.is_empty() {
                    out.push(b'{');
                }
                for field in fields {
                    out.extend_from_slice(&field.lead);
                    field.value.render(source, out);
                }
                out.push(b'}');
            }
        }
        out.push(b'\n');
    }
}

impl Field {
    fn compile(index: usize, name: &str, template: &Template) -> Self {
        let mut lead = if index == 0 { b"{\"".to_vec() } else { b",\"".to_vec() };
        escape_json(name.as_bytes(), &mut lead);
        lead.extend_from_slice(b"\":");
        let mut segments: Vec<Segment> = segments(template).collect();
        let value = match segments.pop() {
            Some(Segment::Variable(variable)) if segments.is_empty() => FieldValue::Variable(variable),
            last => FieldValue::Text(segments.into_iter().chain(last).map(Segment::escape_json).collect()),
        };
        Self { lead: lead.into(), value }
    }
}

impl FieldValue {
    fn render(&self, source: &dyn Source, out: &mut Vec<u8>) {
        match self {
            FieldValue::Variable(variable) => match source.variable(variable) {
                None => out.extend_from_slice(b"null"),
                Some(number @ (Value::Number(_) | Value::Millis(_))) => number.write_to(out),
                Some(text) => {
                    out.push(b'"');
                    write_json(text, out);
                    out.push(b'"');
                }
            },
            FieldValue::Text(segments) => {
                out.push(b'"');
                write_segments(segments, source, out);
                out.push(b'"');
            }
        }
    }
}

impl Segment {
    fn escape_json(self) -> Self {
        match self {
            Segment::Literal(text) => {
                let mut escaped = Vec::new();
                escape_json(&text, &mut escaped);
                Segment::Literal(escaped.into())
            }
            variable => variable,
        }
    }
}

/// Parts of a template: literals and values are escaped differently, so they have to be separated.
///
/// A template is compiled from UTF-8, in which the byte FF never occurs; rendering FF for every variable separates
/// the text exactly at the variables.
fn segments(template: &Template) -> impl Iterator<Item = Segment> {
    struct Marker;
    impl Source for Marker {
        fn variable(&self, _: &Variable) -> Option<Value<'_>> {
            Some(Value::Bytes(&[0xff]))
        }
    }
    let mut marked = Vec::new();
    template.render(&Marker, &mut marked);
    let mut variables = template.variables().cloned();
    let mut segments = Vec::new();
    for literal in marked.split(|byte| *byte == 0xff) {
        if !literal.is_empty() {
            segments.push(Segment::Literal(literal.into()));
        }
        segments.extend(variables.next().map(|variable| {
            // A log shows the received target, as nginx's does.
            let real = variable == Variable::RequestUri;
            Segment::Variable(if real { Variable::RealRequestUri } else { variable })
        }));
    }
    segments.into_iter()
}

/// Writes a text whose values are escaped as in a JSON string.
fn write_segments(segments: &[Segment], source: &dyn Source, out: &mut Vec<u8>) {
    for segment in segments {
        match segment {
            Segment::Literal(text) => out.extend_from_slice(text),
            Segment::Variable(variable) => {
                if let Some(value) = source.variable(variable) {
                    write_json(value, out);
                }
            }
        }
    }
}

fn write_text(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    match value {
        None => out.push(b'-'),
        Some(Value::Bytes(bytes)) => escape_text(bytes, out),
        Some(plain) => plain.write_to(out),
    }
}

fn write_json(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Bytes(bytes) => escape_json(bytes, out),
        plain => plain.write_to(out),
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn hex_digits(byte: u8) -> [u8; 2] {
    [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]]
}

/// True if a value can be copied unchanged in either format; nearly all can. Checks every byte without an early exit,
/// which the compiler turns into a few vector instructions.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\'))
}

fn escape_text(mut bytes: &[u8], out: &mut Vec<u8>) {
    if is_plain(bytes) {
        return out.extend_from_slice(bytes);
    }
    let special = |byte: &u8| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
    while let Some(at) = bytes.iter().position(special) {
        let (plain, rest) = bytes.split_at(at);
        out.extend_from_slice(plain);
        if let Some((byte, rest)) = rest.split_first() {
            out.extend_from_slice(b"\\x");
            out.extend_from_slice(&hex_digits(*byte));
            bytes = rest;
        }
    }
    out.extend_from_slice(bytes);
}

fn escape_json(bytes: &[u8], out: &mut Vec<u8>) {
    if is_plain(bytes) {
        return out.extend_from_slice(bytes);
    }
    for chunk in bytes.utf8_chunks() {
        escape_json_utf8(chunk.valid().as_bytes(), out);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// Escapes `bytes`, which must be UTF-8; all characters that RFC 8259 section 7 requires to be escaped are ASCII.
fn escape_json_utf8(mut bytes: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = bytes.iter().position(|byte| matches!(byte, 0..=0x1f | b'"' | b'\\')) {
        let (plain, rest) = bytes.split_at(at);
        out.extend_from_slice(plain);
        if let Some((byte, rest)) = rest.split_first() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                control => {
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&hex_digits(*control));
                }
            }
            bytes = rest;
        }
    }
    out.extend_from_slice(bytes);
}
