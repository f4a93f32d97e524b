//! The PROXY protocol, versions 1 and 2: a balancer in front says whose connection it passes on.
//!
//! Written after the specification at <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. A header is read
//! from configured peers only, and from them it must come: guessing whether there is one would let anybody send one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The longest header of version 1, its CRLF included.
const V1_BYTES_MAX: usize = 107;
/// What version 2 begins with.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The most bytes of addresses and extensions in version 2.
const V2_BYTES_MAX: usize = 4_096;

/// Reads the header off a connection that `peer` has opened; nothing behind it is read. Gives the client's address, or
/// the peer's own where the header says that the connection is its own.
///
/// # Errors
/// The connection ended, or what it began with is no header.
pub(super) async fn read(stream: &mut TcpStream, peer: SocketAddr) -> io::Result<SocketAddr> {
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    let client = if start == *V2_SIGNATURE {
        read_v2(stream).await?
    } else if start.starts_with(b"PROXY ") {
        parse_v1(&read_v1(stream, &start).await?)?
    } else {
        return Err(bad("it has no PROXY protocol header"));
    };
    Ok(client.unwrap_or(peer))
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The rest of the line, not a byte more.
async fn read_v1(stream: &mut TcpStream, start: &[u8]) -> io::Result<Vec<u8>> {
    let mut line = start.to_vec();
    loop {
        let mut ahead = [0; V1_BYTES_MAX];
        let room = V1_BYTES_MAX - line.len();
        let seen = stream.peek(&mut ahead[..room]).await?;
        if seen == 0 {
            return Err(bad("its PROXY protocol header is cut off, or too long"));
        }
        let end = memchr::memchr(b'\n', &ahead[..seen]);
        // Without an end in sight all of it belongs to the header.
        let taken = end.map_or(seen, |at| at + 1);
        stream.read_exact(&mut ahead[..taken]).await?;
        line.extend_from_slice(&ahead[..taken]);
        if end.is_some() {
            return Ok(line);
        }
    }
}

fn parse_v1(line: &[u8]) -> io::Result<Option<SocketAddr>> {
    const WRONG: &str = "its PROXY protocol header is malformed";
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| bad(WRONG))?;
    let line = std::str::from_utf8(line).map_err(|_| bad(WRONG))?;
    let words: Vec<&str> = line.split(' ').collect();
    let port = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| digits)
    };
    match words[..] {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        [
            "PROXY",
            family,
            source,
            destination,
            source_port,
            destination_port,
        ] => {
            let (source, destination): (IpAddr, IpAddr) =
                match (source.parse(), destination.parse()) {
                    (Ok(source), Ok(destination)) => (source, destination),
                    _ => return Err(bad(WRONG)),
                };
            let is_v4 = match family {
                "TCP4" => true,
                "TCP6" => false,
                _ => return Err(bad(WRONG)),
            };
            if source.is_ipv4() != is_v4 || destination.is_ipv4() != is_v4 {
                return Err(bad(WRONG));
            }
            match (port(source_port), port(destination_port)) {
                (Some(port), Some(_)) => Ok(Some(SocketAddr::new(source, port))),
                _ => Err(bad(WRONG)),
            }
        }
        _ => Err(bad(WRONG)),
    }
}

async fn read_v2(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if length > V2_BYTES_MAX {
        return Err(bad("its PROXY protocol header is too long"));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    parse_v2(head[0], head[1], &rest)
}

fn parse_v2(version_command: u8, family: u8, rest: &[u8]) -> io::Result<Option<SocketAddr>> {
    const WRONG: &str = "its PROXY protocol header is malformed";
    match version_command {
        // LOCAL: the balancer's own connection, such as a health check.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(bad(WRONG)),
    }
    match family {
        // TCP over IPv4.
        0x11 => {
            let [a, b, c, d, _, _, _, _, high, low, ..] = *rest else {
                return Err(bad(WRONG));
            };
            if rest.len() < 12 {
                return Err(bad(WRONG));
            }
            let address = Ipv4Addr::new(a, b, c, d);
            Ok(Some((address, u16::from_be_bytes([high, low])).into()))
        }
        // TCP over IPv6.
        0x21 => {
            if rest.len() < 36 {
                return Err(bad(WRONG));
            }
            let (address, rest) = rest.split_first_chunk::<16>().ok_or_else(|| bad(WRONG))?;
            let port = u16::from_be_bytes([rest[16], rest[17]]);
            Ok(Some((Ipv6Addr::from(*address), port).into()))
        }
        // UNSPEC, Unix sockets, UDP: the address is of no use here.
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_version_1_names_the_client() {
        let v1 = |line: &str| parse_v1(line.as_bytes());
        assert_eq!(
            v1("PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\r\n").unwrap(),
            Some("1.2.3.4:1000".parse().unwrap())
        );
        assert_eq!(
            v1("PROXY TCP6 2001:db8::1 ::1 1000 80\r\n").unwrap(),
            Some("[2001:db8::1]:1000".parse().unwrap())
        );
        assert_eq!(v1("PROXY UNKNOWN\r\n").unwrap(), None);
        assert_eq!(v1("PROXY UNKNOWN what ever\r\n").unwrap(), None);
        for wrong in [
            "PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1000\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1000 80 1\r\n",
            "PROXY TCP4  1.2.3.4 5.6.7.8 1000 80\r\n",
            "PROXY TCP4 ::1 ::1 1000 80\r\n",
            "PROXY TCP6 1.2.3.4 5.6.7.8 1000 80\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 +1000 80\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 70000 80\r\n",
            "PROXY UDP4 1.2.3.4 5.6.7.8 1000 80\r\n",
            "PROXY\r\n",
        ] {
            assert!(v1(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_block_of_version_2_names_the_client() {
        let v4 = [1, 2, 3, 4, 5, 6, 7, 8, 3, 232, 0, 80, 4, 0, 0];
        assert_eq!(
            parse_v2(0x21, 0x11, &v4).unwrap(),
            Some("1.2.3.4:1000".parse().unwrap())
        );
        let mut v6 = [0; 36];
        (v6[15], v6[32], v6[33]) = (1, 3, 232);
        assert_eq!(
            parse_v2(0x21, 0x21, &v6).unwrap(),
            Some("[::1]:1000".parse().unwrap())
        );
        assert_eq!(parse_v2(0x20, 0x11, &v4).unwrap(), None, "LOCAL");
        assert_eq!(parse_v2(0x21, 0x00, &[]).unwrap(), None, "UNSPEC");
        assert!(parse_v2(0x21, 0x11, &v4[..11]).is_err());
        assert!(parse_v2(0x21, 0x21, &v6[..35]).is_err());
        assert!(parse_v2(0x22, 0x11, &v4).is_err());
        assert!(parse_v2(0x11, 0x11, &v4).is_err());
    }
}
