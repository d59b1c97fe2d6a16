//! The same counts under the names of Kong's metrics, for dashboards that were made for them.
//!
//! Histograms have the buckets of the gateway, which are finer at some places than Kong's and coarser at others. As in Kong a
//! request without a service is not counted here.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::Metrics;
use super::label::{Label, Labels};
use super::series::{
    BUCKETS_MS, BandwidthTotals, HistogramTotals, HttpSeries, LatencyTotals, ResponseSource, TrafficKey,
};
use super::text::{header, quoted, value};

/// Metrics of Kong that are on the page, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KongMetrics(u8);

impl KongMetrics {
    /// Those that are always there: connections, requests, the node.
    pub const NODE: Self = Self(1);
    /// `kong_http_requests_total`
    pub const STATUS: Self = Self(2);
    /// `kong_kong_latency_ms`, `kong_upstream_latency_ms`, `kong_request_latency_ms`
    pub const LATENCY: Self = Self(4);
    /// `kong_bandwidth_bytes`
    pub const BANDWIDTH: Self = Self(8);
    /// `kong_upstream_target_health`
    pub const HEALTH: Self = Self(16);

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    pub(super) const fn of_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// Writer of a page's part with Kong's names.
pub(super) struct KongPage<'a> {
    pub(super) metrics: &'a Metrics,
}

impl KongPage<'_> {
    fn labels(&self) -> &Labels {
        self.metrics.labels()
    }

    fn label(&self, out: &mut String, name: &str, label: Label) {
        out.push_str(name);
        out.push('=');
        quoted(out, self.labels().text(label));
        out.push(',');
    }

    fn route(&self, out: &mut String, name: &str, key: &TrafficKey) {
        out.push_str(name);
        out.push('{');
        self.label(out, "service", key.service);
        self.label(out, "route", key.route);
    }

    /// `kong_http_requests_total`
    pub(super) fn statuses(&self, statuses: &[(HttpSeries, u64)], out: &mut String) {
        let name = "kong_http_requests_total";
        header(out, name, "counter", "HTTP status codes per consumer/service/route in Kong");
        for (series, answers) in statuses.iter().filter(|(series, _)| series.service != Label::EMPTY) {
            self.route(out, name, &series.traffic());
            let source = match series.source {
                ResponseSource::Upstream => "service",
                ResponseSource::Apisix => "exit",
                ResponseSource::Nginx => "error",
            };
            let _ = write!(out, "code=\"{}\",source=\"{source}\",workspace=\"default\",consumer=", series.code);
            quoted(out, self.labels().text(series.consumer));
            out.push('}');
            value(out, answers);
        }
    }

    /// One of the three latencies, which `of` finds. Kong has them without the consumer.
    pub(super) fn latencies(
        &self,
        (name, help): (&str, &str),
        latencies: &[(TrafficKey, LatencyTotals)],
        of: impl Fn(&LatencyTotals) -> &HistogramTotals,
        out: &mut String,
    ) {
        header(out, name, "histogram", help);
        let mut at = 0;
        while let Some((key, _)) = latencies.get(at) {
            let same =
                |(other, _): &&(TrafficKey, LatencyTotals)| (other.route, other.service) == (key.route, key.service);
            let group: Vec<_> = latencies.iter().skip(at).take_while(same).collect();
            at += group.len();
            let mut sum = HistogramTotals::default();
            for (_, totals) in group {
                let totals = of(totals);
                sum.buckets.iter_mut().zip(&totals.buckets).for_each(|(sum, found)| *sum = sum.wrapping_add(*found));
                sum.sum_us = sum.sum_us.wrapping_add(totals.sum_us);
            }
            let count: u64 = sum.buckets.iter().sum();
            if key.service != Label::EMPTY && count > 0 {
                self.histogram(name, key, &sum, count, out);
            }
        }
    }

    fn histogram(&self, name: &str, key: &TrafficKey, sum: &HistogramTotals, count: u64, out: &mut String) {
        let mut seen = 0;
        for (bucket, found) in sum.buckets.iter().enumerate() {
            seen += found;
            self.route(out, &format!("{name}_bucket"), key);
            out.push_str("workspace=\"default\",le=");
            match BUCKETS_MS.get(bucket) {
                Some(bound) => {
                    let _ = write!(out, "\"{bound}\"}}");
                }
                None => out.push_str("\"+Inf\"}"),
            }
            value(out, seen);
        }
        for (suffix, number) in [("sum", sum.sum_us as f64 / 1000.0), ("count", count as f64)] {
            self.route(out, &format!("{name}_{suffix}"), key);
            out.push_str("workspace=\"default\"}");
            value(out, number);
        }
    }

    /// `kong_bandwidth_bytes`
    pub(super) fn bandwidth(&self, bandwidth: &[(TrafficKey, BandwidthTotals)], out: &mut String) {
        let name = "kong_bandwidth_bytes";
        header(out, name, "counter", "Total bandwidth (ingress/egress) throughput in bytes");
        for (key, totals) in bandwidth.iter().filter(|(key, _)| key.service != Label::EMPTY) {
            for (direction, bytes) in [("ingress", totals.ingress), ("egress", totals.egress)] {
                self.route(out, name, key);
                let _ = write!(out, "direction=\"{direction}\",workspace=\"default\",consumer=");
                quoted(out, self.labels().text(key.consumer));
                out.push('}');
                value(out, bytes);
            }
        }
    }

    /// Connections, requests and the node, and the health of targets.
    pub(super) fn node(&self, has_health: bool, out: &mut String) {
        let (metrics, clients) = (self.metrics, self.metrics.clients());
        let mut node = String::from("{node_id=");
        quoted(&mut node, &metrics.hostname);
        let name = "kong_nginx_connections_total";
        header(out, name, "gauge", "Number of connections by subsystem");
        let states = [
            ("accepted", clients.accepted),
            ("active", clients.active),
            ("handled", clients.handled),
            ("reading", clients.reading),
            ("total", clients.requests),
            ("waiting", clients.waiting),
            ("writing", clients.writing),
        ];
        for (state, number) in states {
            let _ = write!(out, "{name}{node},subsystem=\"http\",state=\"{state}\"}}");
            value(out, number);
        }
        let name = "kong_nginx_requests_total";
        header(out, name, "gauge", "Total number of requests");
        let _ = write!(out, "{name}{node},subsystem=\"http\"}}");
        value(out, clients.requests);
        let name = "kong_datastore_reachable";
        header(out, name, "gauge", "Datastore reachable from Kong, 0 is unreachable");
        out.push_str(name);
        value(out, 1);
        let name = "kong_node_info";
        header(out, name, "gauge", "Kong Node metadata information");
        let _ = write!(out, "{name}{node},version=");
        quoted(out, &metrics.version);
        out.push_str("} 1\n");
        let upstreams = metrics.upstream_status();
        if !has_health || upstreams.is_empty() {
            return;
        }
        let name = "kong_upstream_target_health";
        header(out, name, "gauge", "Health status of targets of upstream");
        // Services that share an upstream have the same targets.
        let mut seen = HashSet::new();
        for upstream in upstreams.iter() {
            if !seen.insert((upstream.title(), upstream.addr)) {
                continue;
            }
            let current = if upstream.health.is_healthy() { "healthy" } else { "unhealthy" };
            for state in ["healthchecks_off", "healthy", "unhealthy", "dns_error"] {
                let _ = write!(out, "{name}{{upstream=");
                quoted(out, upstream.title());
                let address = upstream.addr;
                let _ =
                    write!(out, ",target=\"{address}\",address=\"{address}\",state=\"{state}\",subsystem=\"http\"}}");
                value(out, u8::from(state == current));
            }
        }
    }
}
