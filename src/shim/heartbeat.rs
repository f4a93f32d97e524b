//! Which requests are heartbeats.

use crate::config::HeartbeatRule;
use memchr::memmem;
use simd_json::prelude::{ValueAsScalar, ValueObjectAccess};

/// What the head of a request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Something else.
    Other,
    /// A heartbeat, whatever its body.
    Heartbeat,
    /// A heartbeat if its body has the marker of one of the rules.
    PerhapsByBody,
}

/// The rules, as configured.
#[derive(Debug)]
pub(super) struct Heartbeats(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    rule: HeartbeatRule,
    /// The marker's name in quotes, as it stands in a body.
    quoted_name: Vec<u8>,
}

impl Heartbeats {
    pub(super) fn new(rules: Vec<HeartbeatRule>) -> Self {
        let quoted = |rule: &HeartbeatRule| match &rule.marker {
            Some((name, _)) => format!("\"{name}\"").into_bytes(),
            None => Vec::new(),
        };
        Self(
            rules
                .into_iter()
                .map(|rule| Rule {
                    quoted_name: quoted(&rule),
                    rule,
                })
                .collect(),
        )
    }

    fn matching(&self, method: &str, path: &str) -> impl Iterator<Item = &Rule> {
        self.0.iter().filter(move |Rule { rule, .. }| {
            let is_path = if rule.is_prefix {
                path.starts_with(&rule.path)
            } else {
                path == rule.path
            };
            is_path && rule.method.as_ref().is_none_or(|wanted| wanted == method)
        })
    }

    /// What method and path say. `path` is without the query.
    pub(super) fn look(&self, method: &str, path: &str) -> Verdict {
        let mut verdict = Verdict::Other;
        for rule in self.matching(method, path) {
            if rule.rule.marker.is_none() {
                return Verdict::Heartbeat;
            }
            verdict = Verdict::PerhapsByBody;
        }
        verdict
    }

    /// Whether a whole body has the marker of a rule for this method and path.
    pub(super) fn has_marker(&self, method: &str, path: &str, body: &[u8]) -> bool {
        self.matching(method, path).any(|rule| {
            let Some((name, value)) = &rule.rule.marker else {
                return true;
            };
            scan(body, &rule.quoted_name, value).unwrap_or_else(|| parse(body, name, value))
        })
    }
}

/// Looks for a member without building a document. `None` where only a parser can tell: what was found may lie in a
/// string, in an inner object, or be there twice.
fn scan(body: &[u8], quoted_name: &[u8], value: &str) -> Option<bool> {
    let body = body.trim_ascii();
    if !body.starts_with(b"{") {
        return Some(false);
    }
    if memchr::memchr(b'\\', body).is_some() {
        return None;
    }
    let mut found = memmem::find_iter(body, quoted_name);
    // Without a backslash, no other bytes spell the name.
    let Some(at) = found.next() else {
        return Some(false);
    };
    // Without one, a quote begins or ends a string, so what was found is a whole string. Within one object it is a name
    // if a colon follows, and then the only one of this name.
    if found.next().is_some()
        || memchr::memchr2(b'{', b'[', &body[1..]).is_some()
        || !body.ends_with(b"}")
    {
        return None;
    }
    let rest = body[at + quoted_name.len()..].trim_ascii_start();
    let Some(rest) = rest.strip_prefix(b":") else {
        return Some(false);
    };
    let rest = rest.trim_ascii_start().strip_prefix(b"\"");
    Some(rest.is_some_and(|rest| {
        rest.strip_prefix(value.as_bytes())
            .is_some_and(|rest| rest.starts_with(b"\""))
    }))
}

fn parse(body: &[u8], name: &str, value: &str) -> bool {
    let mut body = body.to_vec();
    simd_json::to_borrowed_value(&mut body)
        .is_ok_and(|document| document.get(name).and_then(|member| member.as_str()) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Heartbeats {
        Heartbeats::new(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn method_and_path_tell_a_heartbeat_from_what_resembles_one() {
        let rules = rules(&["POST /heartbeat", "* /ping*", "POST /events type=heartbeat"]);
        for (method, path, verdict) in [
            ("POST", "/heartbeat", Verdict::Heartbeat),
            ("GET", "/heartbeat", Verdict::Other),
            ("POST", "/heartbeat/", Verdict::Other),
            ("POST", "/heartbeats", Verdict::Other),
            ("POST", "/Heartbeat", Verdict::Other),
            ("POST", "/heart%62eat", Verdict::Other),
            ("POST", "/a/heartbeat", Verdict::Other),
            ("HEAD", "/ping", Verdict::Heartbeat),
            ("PUT", "/ping/7", Verdict::Heartbeat),
            ("POST", "/events", Verdict::PerhapsByBody),
            ("GET", "/events", Verdict::Other),
        ] {
            assert_eq!(rules.look(method, path), verdict, "{method} {path}");
        }
    }

    #[test]
    fn a_marker_is_a_member_of_the_outermost_object_and_nothing_else() {
        let rules = rules(&["POST /events type=heartbeat"]);
        for (body, is_one) in [
            (r#"{"type":"heartbeat"}"#, true),
            (" {\r\n\t\"type\" :\n \"heartbeat\" , \"n\": 1 }\n", true),
            (r#"{"n":1,"type":"heartbeat","player":"p"}"#, true),
            (r#"{"type":"heartbeat","at":{"lat":1}}"#, true),
            (r#"{"note":"a \"quote\"","type":"heartbeat"}"#, true),
            (r#"{"\u0074ype":"heartbeat"}"#, true),
            (r#"{"type":"heart\u0062eat"}"#, true),
            (r#"{"kind":"type","type":"heartbeat"}"#, true),
            (r#"{"type":"heartbeats"}"#, false),
            (r#"{"type":"Heartbeat"}"#, false),
            (r#"{"type":["heartbeat"]}"#, false),
            (r#"{"types":"heartbeat"}"#, false),
            (r#"{"inner":{"type":"heartbeat"}}"#, false),
            (r#"{"type":"find","inner":{"type":"heartbeat"}}"#, false),
            (r#"[{"type":"heartbeat"}]"#, false),
            (r#"{"note":"\"type\":\"heartbeat\"","type":"find"}"#, false),
            (r#"{"note":"\"type\":\"heartbeat\""}"#, false),
            (r#"{"value":"type","x":"heartbeat"}"#, false),
            (r#"{"type":"heartbeat""#, false),
            (r#"{"type":"heartbeat"}}"#, true),
            (r#""type":"heartbeat""#, false),
            ("", false),
            ("type=heartbeat", false),
        ] {
            // What follows the object is not looked at where the marker itself is not in doubt.
            assert_eq!(
                rules.has_marker("POST", "/events", body.as_bytes()),
                is_one,
                "{body}"
            );
        }
    }
}
