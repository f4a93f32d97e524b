//! HMAC with SHA-256 as the only signature that the JWT crate knows here. What a token's header says of another
//! algorithm therefore cannot be obeyed, even by mistake.

use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use sha2::Sha256;
use signature::{Error, Signer, Verifier};

struct Hs256(Hmac<Sha256>);

impl Hs256 {
    fn new(algorithm: Algorithm, family: AlgorithmFamily, key: &[u8]) -> Result<Box<Self>> {
        if algorithm != Algorithm::HS256 || family != AlgorithmFamily::Hmac {
            return Err(ErrorKind::UnsupportedAlgorithm.into());
        }
        let mac = Hmac::new_from_slice(key).map_err(|_| ErrorKind::InvalidKeyFormat)?;
        Ok(Box::new(Self(mac)))
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let mac = self.0.clone().chain_update(message);
        Ok(mac.finalize().into_bytes().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let mac = self.0.clone().chain_update(message);
        // Compares in constant time.
        mac.verify_slice(signature).map_err(Error::from_source)
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key: &EncodingKey| {
        Ok(Hs256::new(*algorithm, key.family(), key.as_bytes())?)
    },
    verifier_factory: |algorithm, key: &DecodingKey| {
        Ok(Hs256::new(
            *algorithm,
            key.family(),
            key.try_get_as_bytes()?,
        )?)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes this the process's provider, which the crate keeps globally. Asking again changes nothing.
pub(super) fn install() {
    // An error says that it was installed before, by this function: nothing else here does.
    let _ = PROVIDER.install_default();
}
