//! `analytics`: a record of each request for Tyk's Pump, in a list of Redis, as a document in MongoDB, or as a line of CSV.

mod csv;
mod detail;
mod form;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, PerRequest, Phases, Plugin, RequestBodyCx,
    RequestCx, ResponseCx, View,
};
use weir_telemetry::reports::{Channel, ChannelOptions, Destination, Documents, Files, Frame, List, Tls};
use weir_wire::name::FieldName;

use super::entries::{Entries, entries};
use super::shared::{self, Known, ListenPath};
use crate::observe;
use crate::observe::body::Capture;
use crate::security::address_set::AddressSet;
use detail::Detail;
use form::{Bson, Form, Msgpack};

/// The definition.
#[derive(Debug)]
pub(crate) struct Analytics;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// Its name.
    name: String,
    /// Its organisation.
    org_id: String,
    /// The listen path.
    listen_path: String,
    /// Tells paths without the listen path, as the upstream sees them.
    strip_listen_path: bool,
    /// Host and port of the target.
    host: String,
    /// Names of the versions, in their order; none for an API without versions.
    versions: Vec<String>,
    /// Lists of paths of the versions, in the order of those of `api`.
    paths: Vec<PathsConf>,
    /// Names of headers whose values become tags.
    tag_headers: Vec<String>,
    /// Seconds after which a collection may drop the record; 0: a hundred years.
    expire_after: u64,
    /// Addresses whose requests are not recorded.
    ignored_ips: Vec<AddrRange>,
    /// Records requests and answers whole.
    enable_detailed_recording: bool,
    /// The list of Redis.
    redis: Option<Redis>,
    /// The collection of MongoDB.
    mongo: Option<Mongo>,
    /// The folder of files in CSV.
    csv_dir: String,
}

/// Lists of paths of a version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct PathsConf {
    /// Those whose requests are recorded under the path as it is written here.
    track_endpoints: Vec<PathConf>,
    /// Those whose requests are not recorded.
    do_not_track_endpoints: Vec<PathConf>,
    /// Compares paths without regard to case.
    ignore_endpoint_case: bool,
}

/// A path with a method.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct PathConf {
    path: String,
    method: String,
}

/// A list of Redis.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Redis {
    host: String,
    port: u16,
    username: String,
    password: String,
    database: u32,
    use_ssl: bool,
    ssl_insecure_skip_verify: bool,
    /// Seconds after which a list that no Pump reads is gone; -1: never.
    expires: i64,
}

/// A collection of MongoDB.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Mongo {
    url: String,
    collection: String,
}

impl Define for Analytics {
    const NAME: &'static str = "analytics";
    const PRIORITY: i32 = 0;
    const PHASES: Phases =
        Phases::ACCESS.and(Phases::REQUEST_BODY).and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
    const DOC: &'static str = "Records requests for Tyk's Pump.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, redis: {host: 127.0.0.1, port: 6379, expires: 60}}\n";

    const ENCRYPTED: &'static [&'static str] = &["redis.password", "mongo.url"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let invalid = |error| Invalid::new("listen_path", error);
        let listen = cx.ok(ListenPath::compile(&conf.listen_path).map_err(invalid))?;
        let Some((destination, format)) = destination(&conf) else {
            cx.say([Invalid::new("redis", "expected a list of Redis, a collection of MongoDB or a folder")]);
            return None;
        };
        let mut paths = Vec::with_capacity(conf.paths.len());
        for (at, version) in conf.paths.iter().enumerate() {
            paths.push(cx.ok(Paths::compile(version, &format!("paths[{at}]")))?);
        }
        Some(Compiled::build(move |build| {
            Ok(Recording {
                place: shared::place(build, &conf.api_id),
                channel: observe::channel(channel(destination, format), build),
                listen,
                paths: paths.into(),
                capture: detail::capture(),
                format,
                ignored: AddressSet::new(&conf.ignored_ips),
                tag_headers: conf.tag_headers.iter().filter_map(|name| tag_header(name)).collect(),
                user_agent: FieldName::constant("User-Agent"),
                api: conf,
            })
        }))
    }
}

fn tag_header(name: &str) -> Option<(String, FieldName)> {
    let name = name.to_ascii_lowercase();
    let field = FieldName::new(&name)?;
    Some((format!("{name}-"), field))
}

/// The form of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Msgpack,
    Bson,
    Csv,
}

/// The destination of records, and their form there.
fn destination(conf: &Conf) -> Option<(Destination, Format)> {
    if !conf.csv_dir.is_empty() {
        let folder = conf.csv_dir.clone().into();
        let to = Files { folder, name: csv::name, header: csv::HEADER, mode: 0o600 };
        return Some((Destination::Files(to), Format::Csv));
    }
    if let Some(mongo) = &conf.mongo {
        let to = Documents { url: mongo.url.clone(), collection: mongo.collection.clone() };
        return Some((Destination::Documents(to), Format::Bson));
    }
    let redis = conf.redis.as_ref()?;
    let tls = redis.use_ssl.then_some(Tls { server_name: None, verify: !redis.ssl_insecure_skip_verify });
    let list = List {
        host: redis.host.clone(),
        port: redis.port,
        tls,
        username: redis.username.clone(),
        password: redis.password.clone(),
        database: redis.database,
        key: LIST.to_owned(),
        expires: u64::try_from(redis.expires).ok(),
        timeout: Duration::from_secs(5),
    };
    Some((Destination::List(list), Format::Msgpack))
}

/// The list that the Pump reads.
const LIST: &str = "analytics-tyk-system-analytics";

/// Batches of a second, as Tyk's; one that fails is tried again for some minutes.
fn channel(destination: Destination, format: Format) -> ChannelOptions {
    ChannelOptions {
        plugin: Analytics::NAME,
        name: "analytics of Tyk".to_owned(),
        destination,
        frame: if format == Format::Csv { Frame::LineEnds } else { Frame::Lengths },
        batch_records: 1000,
        batch_age: Duration::from_secs(1),
        batch_idle: Duration::from_millis(200),
        max_pending: None,
        retries: 12,
        retry_delay: Duration::from_secs(1),
    }
}

/// Lists of paths of a version, compiled.
#[derive(Debug)]
struct Paths {
    /// With the paths that are recorded.
    tracked: Entries<Box<[u8]>>,
    untracked: Entries<()>,
}

impl Paths {
    fn compile(conf: &PathsConf, at: &str) -> Result<Self, Invalid> {
        let which = |entry: &&PathConf| (entry.path.clone(), entry.method.clone());
        let case = conf.ignore_endpoint_case;
        let (tracked, untracked) = (conf.track_endpoints.iter(), conf.do_not_track_endpoints.iter());
        Ok(Self {
            tracked: entries(&format!("{at}.track_endpoints"), tracked.collect(), case, which, |entry, _| {
                Ok(entry.path.as_bytes().into())
            })?,
            untracked: entries(&format!("{at}.do_not_track_endpoints"), untracked.collect(), case, which, |_, _| {
                Ok(())
            })?,
        })
    }

    fn is_empty(&self) -> bool {
        self.tracked.0.is_empty() && self.untracked.0.is_empty()
    }
}

/// An instance.
#[derive(Debug)]
struct Recording {
    place: Arc<PerRequest<Known>>,
    channel: Arc<Channel>,
    listen: ListenPath,
    /// Lists of paths by the numbers of versions.
    paths: Box<[Paths]>,
    /// Bodies of requests that are recorded whole.
    capture: Capture,
    format: Format,
    ignored: AddressSet,
    /// Headers whose values become tags, with the prefixes of these.
    tag_headers: Box<[(String, FieldName)]>,
    user_agent: FieldName,
    api: Conf,
}

/// Fields of a record.
const FIELDS: u32 = 31;
/// Milliseconds of a hundred years of 365 days.
const CENTURY: u64 = 100 * 365 * 86_400_000;

impl Plugin for Recording {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_detailed(cx) { self.capture.on_request(cx) } else { Flow::Continue }
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_request_body(cx, piece);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if self.is_detailed(cx) {
            self.capture.on_response(cx);
        }
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_body(cx, chunk);
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        let x = cx.view();
        let address: IpAddr = x.client().addr;
        if self.ignored.contains(address) {
            return;
        }
        let known = self.place.get(cx);
        let (number, skipped) = known.map_or((0, 0), |known| (known.version, known.skipped));
        let mut tracked = None;
        if let Some(paths) = self.paths.get(number).filter(|paths| !paths.is_empty()) {
            let (mut rest, request) = (Vec::new(), x.request());
            self.listen.write_rest(request, &mut rest);
            let path = rest.get(skipped..).unwrap_or_default();
            let method = shared::name_of(known.and_then(|known| known.method), request);
            if paths.untracked.find(method, path).is_some() {
                return;
            }
            tracked = paths.tracked.find(method, path).map(|path| &**path);
        }
        let detail = if self.is_detailed(cx) { Detail::of(cx, &self.capture) } else { Detail::default() };
        self.channel.report(|out| match self.format {
            Format::Bson => {
                let mut document = Bson::begin(out);
                document.id(x.unix_ms());
                self.write(x, known, (tracked, &detail), &mut document);
                document.end();
            }
            Format::Msgpack => self.write(x, known, (tracked, &detail), &mut Msgpack::begin(out, FIELDS)),
            Format::Csv => self.write(x, known, (tracked, &detail), &mut csv::Line::begin(out)),
        });
    }
}

impl Recording {
    /// True if the request is recorded whole, as its API or its session asks for.
    fn is_detailed(&self, cx: &impl HookCx) -> bool {
        let known = || self.place.get(cx)?.session.as_ref();
        self.api.enable_detailed_recording || known().is_some_and(|session| session.is_detailed)
    }

    /// Writes the record, field by field in the order of the Pump's structure. `tracked` is the path of a list that it is
    /// recorded under.
    fn write(
        &self,
        x: View<'_>,
        known: Option<&Known>,
        (tracked, detail): (Option<&[u8]>, &Detail),
        form: &mut dyn Form,
    ) {
        let (request, api) = (x.request(), &self.api);
        let session = known.and_then(|known| known.session.as_deref());
        let identity = known.and_then(|known| known.identity.as_deref());
        let key = identity.or(session.map(|session| &*session.name)).unwrap_or_default();
        let (path, version) = (self.path(x), known.and_then(|known| api.versions.get(known.version)));
        // The end of the exchange, as in Tyk.
        let ended = x.unix_ms() + x.duration() / 1000;
        form.text("Method", request.method_bytes());
        form.text("Host", api.host.as_bytes());
        form.text("Path", tracked.unwrap_or(path));
        form.text("RawPath", path);
        form.int("ContentLength", content_length(request));
        form.text("UserAgent", request.field(&self.user_agent).unwrap_or_default());
        let time = Timestamp::from_millisecond(ended.cast_signed()).unwrap_or_default().to_zoned(TimeZone::UTC);
        form.int("Day", time.day().into());
        form.int("Month", time.month().into());
        form.int("Year", time.year().into());
        form.int("Hour", time.hour().into());
        form.int("ResponseCode", x.response().status().into());
        form.text("APIKey", key.as_bytes());
        form.time("TimeStamp", ended);
        form.text("APIVersion", version.map_or(&b"Non Versioned"[..], |version| version.as_bytes()));
        form.text("APIName", api.name.as_bytes());
        form.text("APIID", api.api_id.as_bytes());
        form.text("OrgID", api.org_id.as_bytes());
        form.text("OauthID", b"");
        let (total, upstream) = (x.duration() / 1000, x.upstream_us().unwrap_or(0) / 1000);
        let (total, upstream) = (total.cast_signed(), upstream.min(total).cast_signed());
        form.int("RequestTime", total);
        form.text("RawRequest", detail.request.as_bytes());
        form.text("RawResponse", detail.response.as_bytes());
        form.text("IPAddress", x.client().addr_text.as_bytes());
        form.nested("Geo", 3, &mut no_place);
        form.nested("Network", 4, &mut |network| {
            network.int("OpenConnections", 0);
            network.int("ClosedConnection", 0);
            network.int("BytesIn", x.received().cast_signed());
            network.int("BytesOut", x.sent().cast_signed());
        });
        form.nested("Latency", 3, &mut |latency| {
            latency.int("Total", total);
            latency.int("Upstream", upstream);
            latency.int("Gateway", total - upstream);
        });
        self.write_tags(x, key, known, form);
        form.text("Alias", session.map_or(&b""[..], |session| session.alias.as_bytes()));
        form.flag("TrackPath", tracked.is_some());
        let expires = if api.expire_after == 0 { CENTURY } else { api.expire_after.saturating_mul(1000) };
        form.time("ExpireAt", ended.saturating_add(expires.min(CENTURY)));
        form.text("OriginalPath", request.path());
        form.text("ListenPath", api.listen_path.as_bytes());
    }

    /// The path of a request, without the listen path where the upstream does not see that.
    fn path<'x>(&self, x: View<'x>) -> &'x [u8] {
        let path = x.request().path();
        if !self.api.strip_listen_path {
            return path;
        }
        // Behind a listen path with a slash at its end the path goes on with that slash.
        let cut = self.listen.length(path);
        let from = if path.get(..cut).is_some_and(|listen| listen.ends_with(b"/")) { cut - 1 } else { cut };
        match path.get(from..) {
            Some(rest) if rest.starts_with(b"/") => rest,
            _ => b"/",
        }
    }

    /// Tags: policies, tags of the session, headers, key, organisation, API.
    fn write_tags(&self, x: View<'_>, key: &str, known: Option<&Known>, form: &mut dyn Form) {
        let session = known.and_then(|known| known.session.as_deref());
        let policies = session.map(|session| &*session.policies).unwrap_or_default();
        let own = session.map(|session| &*session.tags).unwrap_or_default();
        let developer = session.and_then(|session| session.meta.get("tyk_developer_id")?.as_str());
        let headers = || {
            self.tag_headers.iter().filter_map(|(prefix, name)| {
                let value = x.request().field(name).and_then(|value| std::str::from_utf8(value).ok());
                Some((prefix.as_str(), value?))
            })
        };
        let fixed = [("key-", key), ("org-", self.api.org_id.as_str()), ("api-", self.api.api_id.as_str())];
        let tags = || {
            let policies = policies.iter().map(|policy| ("pol-", &**policy));
            let developer = developer.into_iter().map(|developer| ("dev-", developer));
            let own = own.iter().map(|tag| ("", &**tag));
            let fixed = fixed.iter().copied().filter(|(prefix, text)| *prefix == "api-" || !text.is_empty());
            policies.chain(developer).chain(own).chain(headers()).chain(fixed)
        };
        form.texts("Tags", tags().count(), &mut tags());
    }
}

/// The length of a request's body; -1: it comes in chunks.
fn content_length(request: &weir_plugin::Request) -> i64 {
    let field = |name: &str| request.field_str(name);
    match field("content-length").and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok()) {
        Some(length) => length,
        None if field("transfer-encoding").is_some() => -1,
        None => 0,
    }
}

/// Nobody looks up the place of an address.
fn no_place(geo: &mut dyn Form) {
    geo.nested("Country", 1, &mut |country| country.text("ISOCode", b""));
    geo.nested("City", 2, &mut |city| {
        city.int("GeoNameID", 0);
        city.nested("Names", 0, &mut |_| {});
    });
    geo.nested("Location", 3, &mut |location| {
        location.float("Latitude", 0.0);
        location.float("Longitude", 0.0);
        location.text("TimeZone", b"");
    });
}
