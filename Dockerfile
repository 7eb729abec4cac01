# A fixed image on top of a stock one.  `python3 -m fixpack image --profile P --base NAME@sha256:…` prints the whole
# command; docs/image.md says what each argument is.
ARG BASE
FROM ${BASE}

ARG BASE
ARG BASE_DIGEST
ARG BASE_NAME
ARG BASE_USER=root
ARG FIXES
ARG FIXPACK_REVISION
ARG FIX_REVISIONS
ARG LOCK_SHA256
ARG PROFILE
ARG PYTHON=python3
ARG SOURCE_DATE_EPOCH

# .dockerignore lets through what the engine needs.  One mode for all, whatever umask the checkout was made with.
COPY --chmod=0755 . /opt/fixpack/

# Still as the base's own user: a result must not run as another one, nor have a label that is not true.
RUN cd /opt/fixpack && PYTHONPATH=. "$PYTHON" -B -m fixpack image --arguments

USER root
RUN "$PYTHON" -B /opt/fixpack/apply_all.py --profile "$PROFILE" $FIXES

# As the user who will serve: what he cannot read is not in place.
USER ${BASE_USER}
RUN "$PYTHON" -B /opt/fixpack/apply_all.py --check --profile "$PROFILE" $FIXES

LABEL org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      org.opencontainers.image.revision="${FIXPACK_REVISION}" \
      fixpack.profile="${PROFILE}" \
      fixpack.fixes="${FIX_REVISIONS}" \
      fixpack.lock="sha256:${LOCK_SHA256}"
