//! Usage in a table of ClickHouse, over HTTP.
//!
//! Rows are replaced by later ones with the same dimensions, when ClickHouse merges them: questions read `FINAL`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use serde_json::{Map, Value};
use url::Url;
use weir_usage::{Minute, Row, Sink};

use super::TIMEOUT;
use crate::agents::Agents;

/// Most bytes of an answer that are read.
const MOST: u64 = 64 << 10;

/// A table.
pub(super) struct Table {
    agents: Agents,
    /// The address, without user and password.
    url: Url,
    user: String,
    password: String,
    table: String,
    gateway: String,
    is_made: bool,
}

impl Table {
    pub(super) fn new(url: &Url, table: &str, gateway: &str, trusted: &str) -> anyhow::Result<Self> {
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            bail!("url: expected http://HOST:PORT/ or https://HOST:PORT/, with ?database=NAME");
        }
        if let Some((name, _)) = url.query_pairs().find(|(name, _)| name != "database") {
            bail!("url: {name}: unknown argument; known is database");
        }
        let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = (decoded(url.username()), decoded(url.password().unwrap_or_default()));
        let mut url = url.clone();
        // Both fail for a URL without a host only.
        let _ = (url.set_username(""), url.set_password(None));
        let agents = Agents::new(trusted, Some(TIMEOUT));
        Ok(Self { agents, url, user, password, table: table.to_owned(), gateway: gateway.to_owned(), is_made: false })
    }

    /// Makes the table if it is missing.
    fn make(&mut self) -> Result<(), String> {
        if self.is_made {
            return Ok(());
        }
        let dimensions: Vec<String> =
            Row::DIMENSIONS.iter().map(|name| format!("{name} LowCardinality(String)")).collect();
        let numbers: Vec<String> =
            Row::SUMS.iter().chain(&Row::PERCENTILES).map(|name| format!("{name} UInt64")).collect();
        let statement = format!(
            "CREATE TABLE IF NOT EXISTS {} (time DateTime('UTC'), gateway LowCardinality(String), {}, status UInt8, {}, \
             version UInt64) ENGINE = ReplacingMergeTree(version) PARTITION BY toYYYYMM(time) \
             ORDER BY (time, gateway, {}, status)",
            self.table,
            dimensions.join(", "),
            numbers.join(", "),
            Row::DIMENSIONS.join(", "),
        );
        self.ask(None, &statement)?;
        self.is_made = true;
        Ok(())
    }

    /// Sends a statement; with `query` as an argument, and the rest as data.
    fn ask(&self, query: Option<&str>, body: &str) -> Result<(), String> {
        let mut url = self.url.clone();
        if let Some(query) = query {
            url.query_pairs_mut().append_pair("query", query);
        }
        let mut request = self.agents.of(url.as_str(), true)?.post(url.as_str());
        if !self.user.is_empty() {
            request = request.header("X-ClickHouse-User", &self.user).header("X-ClickHouse-Key", &self.password);
        }
        let mut response = request.send(body.as_bytes()).map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let said = response.body_mut().with_config().limit(MOST).read_to_vec().unwrap_or_default();
        if status == 200 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        Err(format!("ClickHouse answers with status {status}: {}", said.lines().next().unwrap_or_default()))
    }
}

impl Sink for Table {
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String> {
        self.make()?;
        let version = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut body = String::new();
        for minute in minutes {
            for row in &minute.rows {
                let mut fields: Map<String, Value> = Map::new();
                fields.insert("time".to_owned(), minute.start.into());
                fields.insert("gateway".to_owned(), self.gateway.as_str().into());
                for (name, value) in Row::DIMENSIONS.iter().zip(&row.dimensions) {
                    fields.insert((*name).to_owned(), value.as_ref().into());
                }
                fields.insert("status".to_owned(), row.class.into());
                for (name, number) in
                    Row::SUMS.iter().chain(&Row::PERCENTILES).zip(row.sums.iter().chain(&row.percentiles))
                {
                    fields.insert((*name).to_owned(), (*number).into());
                }
                fields.insert("version".to_owned(), version.into());
                body.push_str(&Value::Object(fields).to_string());
                body.push('\n');
            }
        }
        let query = format!("INSERT INTO {} FORMAT JSONEachRow", self.table);
        self.ask(Some(&query), &body)
    }
}
