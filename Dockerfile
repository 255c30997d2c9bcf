# A place for the commands of the README, on Linux, macOS and Windows: twins, learning, experiments, pages.
#   docker build -t onrig . && docker run --rm -it -p 127.0.0.1:8089:8089 onrig
# A board with a device is better set up without a container (docs/real-time.md).
FROM python:3.11.13-slim-bookworm AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc git libc6-dev make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home rig
USER rig

FROM base
WORKDIR /home/rig/onrig
COPY --chown=rig:rig . .
# torch from PyPI includes CUDA on x86-64; `make setup` finds the build for the CPU installed.
RUN python3 -m venv .venv \
    && .venv/bin/pip install --constraint constraints.txt --index-url https://download.pytorch.org/whl/cpu torch \
    && make setup
ENV PATH=/home/rig/onrig/.venv/bin:$PATH
EXPOSE 8089 8765
CMD ["onrig", "run", "pendulum", "--web", "0.0.0.0:8089"]
