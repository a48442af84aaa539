//! Encoding a body. The only file that names the compression libraries.

use std::io::{self, Read, Write};

use flate2::write::GzEncoder;

use crate::cache::coding::Coding;

/// How much time compressing a body may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The body may soon be replaced.
    Usual,
    /// The body does not change any more, so that it is compressed once for days.
    High,
}

const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;
/// The largest window that every decoder has (RFC 7932 §9.1): 4 MiB.
const BROTLI_WINDOW: u32 = 22;
const BROTLI_BUFFER: usize = 16 << 10;

/// A body in a coding.
///
/// # Errors
/// Where the library fails, for want of memory for example.
pub(crate) fn encode(body: &[u8], coding: Coding, effort: Effort) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
        Coding::Brotli => {
            let quality = match effort {
                Effort::Usual => 5,
                Effort::High => 9,
            };
            let mut encoded = Vec::with_capacity(body.len() / 4);
            let mut encoder =
                brotli::CompressorWriter::new(&mut encoded, BROTLI_BUFFER, quality, BROTLI_WINDOW);
            encoder.write_all(body)?;
            // It writes the end of the stream when it is dropped, and cannot fail to:
            // a vector takes everything.
            drop(encoder);
            Ok(encoded)
        }
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), level);
            encoder.write_all(body)?;
            encoder.finish()
        }
    }
}

/// What gzip's encoding of a text was made from.
///
/// # Errors
/// If it is not gzip, or broken.
pub(crate) fn unzip(encoded: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(encoded.len() * 4);
    flate2::read::GzDecoder::new(encoded).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(encoded: &[u8], coding: Coding) -> Vec<u8> {
        let mut body = Vec::new();
        match coding {
            Coding::Zstd => zstd::stream::copy_decode(encoded, &mut body).unwrap(),
            Coding::Brotli => {
                let mut decoder = brotli::Decompressor::new(encoded, 4096);
                decoder.read_to_end(&mut body).map(drop).unwrap();
            }
            Coding::Gzip => {
                let mut decoder = flate2::read::GzDecoder::new(encoded);
                decoder.read_to_end(&mut body).map(drop).unwrap();
            }
        }
        body
    }

    #[test]
    fn a_body_is_decoded_to_itself() {
        let item = r#"{"operation":"transfer","ticker":"ordi","tx_id":"#;
        let numbered = (0..2000).map(|n| format!("{item}{n}}},"));
        let bodies = [
            Vec::new(),
            b"{}".to_vec(),
            numbered.collect::<String>().into_bytes(),
            (0..100_000_u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
        ];
        for body in &bodies {
            for coding in Coding::ALL {
                for effort in [Effort::Usual, Effort::High] {
                    let encoded = encode(body, coding, effort).unwrap();
                    assert!(decode(&encoded, coding) == *body, "{coding:?} {effort:?}");
                }
            }
        }
        // Text becomes much smaller.
        for coding in Coding::ALL {
            let encoded = encode(&bodies[2], coding, Effort::Usual).unwrap();
            assert!(encoded.len() < bodies[2].len() / 5, "{coding:?}");
        }
    }
}
