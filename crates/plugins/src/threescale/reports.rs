//! Reports of usage to a backend: summed up and sent in batches, beside all requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use weir_plugin::BuildCx;
use weir_telemetry::reports::{Channel, ChannelOptions, Check, Combine, Destination, Endpoints, Frame, Post};

use super::backend::{Draft, TIMEOUT};
use super::credentials::Found;
use super::usage::encode;

/// Attempts after the first to send a batch, with pauses of up to a minute between them. Batches that have no room in
/// `reports.memory`, or are left at the end of the process, go to the folder `reports.spill`.
const RETRIES: u32 = 10_000;
/// Requests after which a batch is sent, however young it is.
const MOST: usize = 1_000_000;

/// Reports of a service.
#[derive(Debug)]
pub(super) struct Reports(Arc<Channel>);

impl Reports {
    /// The channel to a backend, where batches wait for `seconds`.
    pub(super) fn open(draft: &Draft, id: &str, seconds: u64, build: &BuildCx<'_>) -> Self {
        let post = Post {
            uri: format!("{}/transactions.xml", draft.endpoint),
            fields: draft.report_fields(),
            timeout: TIMEOUT,
            verify: draft.verifies,
        };
        let age = Duration::from_secs(seconds);
        let options = ChannelOptions {
            plugin: "apicast",
            name: format!("reports of the service {id}"),
            destination: Destination::Endpoints(Endpoints { posts: vec![post], check: Check::Success }),
            frame: Frame::Combined(Combine { begin: draft.identity.as_str().into(), combine }),
            batch_records: MOST,
            batch_age: age,
            batch_idle: age,
            max_pending: None,
            retries: RETRIES,
            retry_delay: Duration::from_secs(1),
        };
        // The same channel before and after a change that leaves the backend as it is.
        let key = format!("3scale reports {:?} {:?} {seconds}", options.destination, options.frame);
        Self(build.states.get_or_create(&key, || Channel::open(options)))
    }

    /// Reports usage, which `usage` appends. A request of another minute is another transaction: so the usage of batches
    /// that wait for long counts in the periods in which it was made.
    pub(super) fn add(&self, credentials: &Found, unix_ms: u64, usage: impl FnOnce(&mut Vec<u8>)) {
        self.0.report(|out| {
            credentials.write_report(out);
            out.push(b'\n');
            weir_wire::push_number(out, unix_ms / 60_000);
            out.push(b'\n');
            usage(out);
        });
    }
}

/// Sums by metric.
type Metrics<'r> = BTreeMap<&'r [u8], u64>;

/// Transactions in the form of `POST /transactions.xml`.
fn combine(records: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>) {
    let mut sums = BTreeMap::<(&[u8], u64), Metrics<'_>>::new();
    for record in records {
        let mut parts = record.splitn(3, |byte| *byte == b'\n');
        let (Some(application), Some(minute), Some(usage)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let metrics = sums.entry((application, number(minute))).or_default();
        for addition in usage.split(|byte| *byte == b'&') {
            let Some(at) = addition.iter().rposition(|byte| *byte == b'=') else { continue };
            let (metric, delta) = (addition.get(..at).unwrap_or_default(), addition.get(at + 1..).unwrap_or_default());
            *metrics.entry(metric).or_default() += number(delta);
        }
    }
    for (at, ((application, minute), metrics)) in sums.into_iter().enumerate() {
        let name = |out: &mut Vec<u8>, rest: &[&[u8]]| {
            out.extend_from_slice(b"&transactions%5B");
            weir_wire::push_number(out, at as u64);
            for part in rest {
                out.extend_from_slice(b"%5D%5B");
                out.extend_from_slice(part);
            }
            out.extend_from_slice(b"%5D=");
        };
        let (kind, value) = split_at_equals(application);
        name(out, &[kind]);
        out.extend_from_slice(value);
        for (metric, sum) in metrics {
            name(out, &[b"usage", metric]);
            weir_wire::push_number(out, sum);
        }
        name(out, &[b"timestamp"]);
        let time = Timestamp::from_second(minute as i64 * 60).unwrap_or_default();
        encode(time.strftime("%Y-%m-%d %H:%M:%S +0000").to_string().as_bytes(), out);
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn split_at_equals(text: &[u8]) -> (&[u8], &[u8]) {
    let at = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::combine;

    #[test]
    fn usage_is_summed_by_application_and_minute() {
        let records: [&[u8]; 5] = [
            b"user_key=k%26\n29000000\nhits=1&a%5Bb=2",
            b"user_key=j\n29000000\nhits=5",
            b"user_key=k%26\n29000000\nhits=3",
            b"user_key=k%26\n29000001\nhits=1",
            b"broken",
        ];
        let mut out = b"service_token=t&service_id=1".to_vec();
        combine(&mut records.into_iter(), &mut out);
        let text = String::from_utf8(out).expect("text");
        let expected = "service_token=t&service_id=1\
            &transactions[0][user_key]=j&transactions[0][usage][hits]=5\
            &transactions[0][timestamp]=2025-02-19 21:20:00 +0000\
            &transactions[1][user_key]=k%26&transactions[1][usage][a%5Bb]=2&transactions[1][usage][hits]=4\
            &transactions[1][timestamp]=2025-02-19 21:20:00 +0000\
            &transactions[2][user_key]=k%26&transactions[2][usage][hits]=1\
            &transactions[2][timestamp]=2025-02-19 21:21:00 +0000";
        let expected =
            expected.replace("transactions[", "transactions%5B").replace("][", "%5D%5B").replace("]=", "%5D=");
        assert_eq!(text, expected.replace(' ', "%20").replace(" +", "%20%2B").replace("%20+", "%20%2B"));
    }
}
