//! Versions of an API: which one a request asks for, and what each of them allows.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Invalid, Request};
use weir_wire::name::FieldName;

use super::Refusal;
use super::lists::{self, Lists};
use crate::query;
use crate::tyk::patterns;

/// The versions of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Place of the version in a request; none: the first version holds for all.
    location: Option<Location>,
    /// Name of the header or the argument.
    key: String,
    /// Takes the version out of the request.
    strip: bool,
    /// Takes the default version for one that is not known.
    fallback: bool,
    /// Name of the version of requests that name none.
    default: String,
    /// The versions are APIs of their own, each on a route of its own: keys name the APIs alone.
    of_apis: bool,
    /// Regular expression of segments that are taken off the path where they name no version that is known.
    url_versioning_pattern: String,
    /// The versions.
    list: Vec<VersionConf>,
}

/// Place of the version in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Location {
    Header,
    UrlParam,
    Url,
}

/// A version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct VersionConf {
    /// Its name.
    name: String,
    /// `2006-01-02 15:04`; empty: never.
    expires: String,
    /// Lists of paths that are allowed, blocked or ignored.
    #[serde(flatten)]
    lists: lists::Conf,
}

/// The versions, compiled.
#[derive(Debug)]
pub(super) struct Versions {
    location: Option<Location>,
    field: Option<FieldName>,
    key: Box<[u8]>,
    strip: bool,
    fallback: bool,
    /// Number of the default version.
    default: Option<usize>,
    of_apis: bool,
    /// Segments that are taken off the path where they name no version that is known.
    pattern: Option<Regex>,
    list: Box<[Version]>,
}

#[derive(Debug)]
struct Version {
    name: Box<str>,
    /// Seconds since 1970; none: never.
    expires: Option<i64>,
    /// The same as a date of HTTP.
    date: Vec<u8>,
    lists: Lists,
}

impl Versions {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let is_versioned = conf.location.is_some();
        let mut list = Vec::with_capacity(conf.list.len());
        for (at, version) in conf.list.into_iter().enumerate() {
            let time = version.expires.trim();
            let expires = match time {
                _ if !is_versioned => None,
                "" | "-1" => None,
                time => Some(parse(time).ok_or_else(|| {
                    let text = format!("expected a time such as 2030-12-31 23:59, found '{time}'");
                    Invalid::new(format!("versions.list[{at}].expires"), text)
                })?),
            };
            let lists = Lists::compile(version.lists)
                .map_err(|error| Invalid { path: format!("versions.list[{at}].{}", error.path), ..error })?;
            let date = expires.map(date_of).unwrap_or_default();
            list.push(Version { name: version.name.into(), expires, date, lists });
        }
        let default = list.iter().position(|version| *version.name == *conf.default).filter(|_| is_versioned);
        let field = match conf.location {
            Some(Location::Header) => Some(
                FieldName::new(&conf.key)
                    .ok_or_else(|| Invalid::new("versions.key", "expected the name of a header"))?,
            ),
            _ => None,
        };
        let key = conf.key.into_bytes().into();
        let pattern = Some(&*conf.url_versioning_pattern).filter(|pattern| !pattern.is_empty());
        let pattern = pattern.map(|pattern| patterns::compile(pattern, false)).transpose();
        let pattern = pattern.map_err(|error| Invalid::new("versions.url_versioning_pattern", error))?;
        let (location, strip, fallback, of_apis) = (conf.location, conf.strip, conf.fallback, conf.of_apis);
        Ok(Self { location, field, key, strip, fallback, default, of_apis, pattern, list: list.into() })
    }

    /// Number of the version of a request, and how much of the path behind the listen path names it.
    pub(super) fn of(&self, request: &Request, rest: &[u8], now: i64) -> Result<(usize, usize), Refusal> {
        let Some(location) = self.location else { return Ok((0, 0)) };
        let unknown = (if self.of_apis { 404 } else { 403 }, "This API version does not seem to exist");
        let segment = rest.strip_prefix(b"/").unwrap_or(rest).split(|b| *b == b'/').next().unwrap_or_default();
        let mut decoded = Vec::new();
        let named = match location {
            Location::Header => self.field.as_ref().and_then(|field| request.field(field)),
            Location::UrlParam => request.query().and_then(|query| query::argument(query, &self.key)).map(|value| {
                query::decode(value, &mut decoded);
                &*decoded
            }),
            Location::Url => Some(segment),
        };
        let named = named.filter(|name| !name.is_empty());
        let found = match named {
            None if location == Location::Url && !self.of_apis => return Err(unknown),
            None => self.default.ok_or((403, "Version information not found"))?,
            Some(name) => match self.list.iter().position(|version| version.name.as_bytes() == name) {
                Some(found) => found,
                None if self.fallback => self.default.ok_or(unknown)?,
                None => return Err(unknown),
            },
        };
        let version = self.list.get(found).ok_or(unknown)?;
        if version.expires.is_some_and(|expires| now >= expires) {
            return Err((403, "Api Version has expired, please check documentation or contact administrator"));
        }
        let is_named = version.name.as_bytes() == segment;
        let is_taken_off = is_named || self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(segment));
        let is_in_path = location == Location::Url && is_taken_off;
        Ok((found, if is_in_path && self.strip { segment.len() + 1 } else { 0 }))
    }

    /// Name of a version that keys may name; none for an API without versions.
    pub(super) fn name(&self, version: usize) -> Option<&str> {
        self.location.filter(|_| !self.of_apis)?;
        self.list.get(version).map(|version| &*version.name)
    }

    pub(super) fn lists(&self, version: usize) -> Option<&Lists> {
        self.list.get(version).map(|version| &version.lists)
    }

    /// The end of a version as a date of HTTP.
    pub(super) fn date(&self, version: usize) -> Option<&[u8]> {
        self.list.get(version).map(|version| version.date.as_slice()).filter(|date| !date.is_empty())
    }

    /// The header that is taken out of requests.
    pub(super) fn stripped_field(&self) -> Option<&FieldName> {
        self.field.as_ref().filter(|_| self.strip)
    }

    /// The argument that is taken out of requests.
    pub(super) fn stripped_argument(&self) -> Option<&[u8]> {
        (self.strip && self.location == Some(Location::UrlParam)).then_some(&*self.key)
    }
}

/// Seconds since 1970 of `2006-01-02 15:04`.
fn parse(time: &str) -> Option<i64> {
    let time = DateTime::strptime("%Y-%m-%d %H:%M", time).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

fn date_of(seconds: i64) -> Vec<u8> {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::{date_of, parse};

    #[test]
    fn times_are_read() {
        let seconds = parse("2099-01-02 15:04").expect("a time");
        assert_eq!(String::from_utf8_lossy(&date_of(seconds)), "Fri, 02 Jan 2099 15:04:00 UTC");
        assert_eq!((parse("3000-01-02 15:04").is_some(), parse("tomorrow")), (true, None));
    }
}
