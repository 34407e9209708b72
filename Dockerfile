# One image for both programs; the default is the exporter. Packages come from the lock files alone, each with its hash.
FROM python:3.11.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements.lock requirements-dev.lock ./
# setuptools and pip build the project and stay in this stage; the lines of setuptools stand in the lock file of
# development.
RUN python -m venv /builder \
    && sed -n '/^setuptools==/,/[^\\]$/p' requirements-dev.lock >builder.lock \
    && /builder/bin/pip install --require-hashes -r builder.lock \
    && python -m venv --without-pip /opt/stallwatch \
    && /builder/bin/pip --python /opt/stallwatch/bin/python install --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY stallwatch stallwatch
COPY exporter exporter
COPY remediator remediator
COPY demo demo
RUN /builder/bin/pip wheel --no-deps --no-build-isolation -w /wheels . \
    && /builder/bin/pip --python /opt/stallwatch/bin/python install --no-deps --no-index /wheels/*.whl \
    # A lock file without the drivers and PostgreSQL ends the build here and not at the first start.
    && /opt/stallwatch/bin/python -c "import bcrypt, docker, jeepney, kubernetes, psycopg"

FROM python:3.11.11-slim-bookworm
LABEL org.opencontainers.image.title="stallwatch" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 stallwatch \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/stallwatch --shell /usr/sbin/nologin stallwatch \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/stallwatch
COPY --from=build /opt/stallwatch /opt/stallwatch
ENV PATH=/opt/stallwatch/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    STALLWATCH_HEALTH_URL=http://127.0.0.1:9840/-/healthy
# By number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /var/lib/stallwatch
EXPOSE 9840 9841
# No curl is needed, and no proxy of the environment is asked. Another program of this image sets its own address.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(os.environ['STALLWATCH_HEALTH_URL'], timeout=4)"]
CMD ["stallwatch-exporter", "--config.file=/etc/stallwatch/exporter.yml", "--web.listen-address=0.0.0.0:9840"]
