//! A primary, two replicas and three sentinels, each server behind a relay of its own, so that everybody reaches it by a
//! wire that can be cut.

use super::relay::Relay;
use crate::http_site::wait;
use crate::redis_server::Server;
use crate::redis_server::sentinel::Sentinel;
use trove_streams::redis;

pub const MASTER: &str = "hunt";

/// A server and its wire.
pub struct Member {
    pub server: Server,
    pub relay: Relay,
}

/// See the module.
pub struct Group {
    pub members: Vec<Member>,
    sentinels: Vec<Sentinel>,
}

impl Group {
    /// A group whose replicas have caught up and whose sentinels know one another.
    pub fn start() -> Self {
        let mut members: Vec<Member> = Vec::new();
        for nth in 0..3 {
            // The relay comes first: the server announces its port.
            let relay = Relay::start(0);
            let port = relay.port.to_string();
            let announced = ["--replica-announce-ip", "127.0.0.1"];
            let mut args = announced.to_vec();
            args.extend(["--replica-announce-port", &port]);
            args.extend(["--repl-diskless-sync-delay", "0", "--repl-timeout", "5"]);
            let primary = members.first().map(|first| first.relay.port.to_string());
            if let (1.., Some(primary)) = (nth, &primary) {
                args.extend(["--replicaof", "127.0.0.1", primary]);
            }
            let server = Server::with(&args);
            relay.lead_to(server.port);
            members.push(Member { server, relay });
        }
        let primary = members[0].relay.port;
        let sentinels = (0..3)
            .map(|_| Sentinel::start(MASTER, primary, 2))
            .collect();
        let group = Self { members, sentinels };
        group.ready();
        group
    }

    /// The store's address.
    pub fn url(&self) -> String {
        let sentinels: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
            .collect();
        format!("redis+sentinel://{}/{MASTER}", sentinels.join(","))
    }

    /// Waits until every sentinel knows two replicas and two other sentinels, and both replicas follow.
    pub fn ready(&self) {
        wait("the group to be whole", || {
            let known = self.sentinels.iter().all(|sentinel| {
                let answer: Vec<String> = sentinel
                    .asked(&["SENTINEL", "MASTER", MASTER])
                    .unwrap_or_default();
                let field = |name: &str| {
                    let at = answer.iter().position(|field| field == name)?;
                    answer.get(at + 1)?.parse::<u64>().ok()
                };
                field("num-slaves") == Some(2)
                    && field("num-other-sentinels") == Some(2)
                    && answer.iter().any(|flags| flags == "master")
            });
            known
                && self
                    .primary()
                    .is_some_and(|primary| self.followers(primary) == 2)
        });
    }

    /// The replicas that follow a member, as it says.
    fn followers(&self, member: usize) -> usize {
        let info = self.members[member]
            .server
            .asked::<String>(&["INFO", "replication"]);
        info.map_or(0, |info| info.matches("state=online").count())
    }

    /// The member that most sentinels say is the primary, if it agrees.
    pub fn primary(&self) -> Option<usize> {
        let mut votes = [0; 3];
        for sentinel in &self.sentinels {
            let address: Option<Vec<String>> =
                sentinel.asked(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
            let port = address.and_then(|address| address.get(1)?.parse::<u16>().ok());
            let of = |member: &Member| Some(member.relay.port) == port;
            if let Some(at) = self.members.iter().position(of) {
                votes[at] += 1;
            }
        }
        let at = votes.iter().position(|votes| *votes >= 2)?;
        let role: redis::Value = self.members[at].server.asked(&["ROLE"])?;
        let redis::Value::Array(role) = role else {
            return None;
        };
        let is_master =
            matches!(role.first(), Some(redis::Value::BulkString(word)) if word == b"master");
        is_master.then_some(at)
    }

    /// Waits until another member than `old` is the primary, and gives it.
    pub fn promoted(&self, old: usize) -> usize {
        let mut new = old;
        wait("a replica to be promoted", || match self.primary() {
            Some(primary) if primary != old => {
                new = primary;
                true
            }
            _ => false,
        });
        new
    }

    /// Kills a member like a crash; its links end with it.
    pub fn kill(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.server.kill();
        member.relay.sever();
        member.relay.flow();
    }

    /// Starts a member that was killed; it comes back empty, and as whatever it was started as.
    pub fn start_again(&mut self, member: usize) {
        self.members[member].server.start_again();
    }
}
