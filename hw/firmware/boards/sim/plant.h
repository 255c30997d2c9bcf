/* The plants of sim/plants, with the paper's parameters, in 64-bit floats. State: position and velocity, in SI units.
 * */
#ifndef ONRIG_SIM_PLANT_H
#define ONRIG_SIM_PLANT_H

struct onrig_plant {
    double inertia_kg_m2; /* pendulum */
    /* Without an action the actuators are released. */
    double (*acceleration)(const struct onrig_plant *plant, const double *state, const double *action);
    /* Wrap angles and apply wall contacts, at a sample. */
    void (*constrain)(double *state);
};

extern const struct onrig_plant onrig_pendulum_plant;    /* the paper's inertia */
extern const struct onrig_plant onrig_pendulum_hw_plant; /* the real device's */
extern const struct onrig_plant onrig_magman_plant;

/* Advance by dt seconds under a held action, or with the actuators released (null), in that many steps of the
 * classical Runge-Kutta method. */
void onrig_plant_advance(
    const struct onrig_plant *plant, double *state, const double *action, double dt, unsigned substeps);

#endif
